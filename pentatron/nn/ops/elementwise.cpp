#include <ATen/ATen.h>

#include "pentatron/base/philox.h"
#include "pentatron/base/planted_bug.h"
#include "pentatron/kernels/dropout/dropout.h"
#include "pentatron/nn/host_copies.h"
#include "pentatron/nn/ops/kernel_args.h"
#include "pentatron/nn/ops/ops.h"
#include "pentatron/nn/record.h"

namespace pentatron::nn {

namespace {

at::Tensor activate(const at::Tensor& x, kernels::Activation kind, bool gated,
                    const kernels::GateOptions& gate, const at::Tensor& row_scale) {
  const int64_t cols = gated ? x.size(1) / 2 : x.size(1);
  const at::Tensor y = at::empty({x.size(0), cols}, x.options());
  kernels::activation_forward({.kind = kind,
                               .gated = gated,
                               .gate = gate,
                               .dtype = kernel_dtype(x.scalar_type()),
                               .rows = x.size(0),
                               .cols = cols,
                               .x = x.data_ptr(),
                               .row_scale = data_or_null(row_scale),
                               .y = y.data_ptr(),
                               .x_stride = x.stride(0)},
                              KernelContext(x));
  return y;
}

} // namespace

at::Tensor activation(const at::Tensor& x, kernels::Activation kind, bool gated,
                      const at::Tensor& row_scale, const kernels::GateOptions& gate) {
  at::Tensor y;
  {
    const NoAutograd guard;
    y = activate(x.detach(), kind, gated, gate,
                 row_scale.defined() ? row_scale.detach().contiguous() : row_scale);
  }
  record("activation", {x, row_scale}, {y}, {x, row_scale},
         [kind, gated, gate, wants_scale = row_scale.defined() && row_scale.requires_grad()](
             auto&& grads, Saved& saved) {
           const NoAutograd guard;
           const at::Tensor dy = grads[0].contiguous();
           // The gradient replaces the saved input: the linear layer that made it does not need it.
           const at::Tensor input = saved.overwrite(0);
           const at::Tensor scale = saved[1].defined() ? saved[1].contiguous() : at::Tensor();
           at::Tensor dscale;
           if (wants_scale) dscale = at::empty_like(scale);
           kernels::activation_backward({.kind = kind,
                                         .gated = gated,
                                         .gate = gate,
                                         .dtype = kernel_dtype(input.scalar_type()),
                                         .rows = input.size(0),
                                         .cols = dy.size(1),
                                         .dy = dy.data_ptr(),
                                         .x = input.data_ptr(),
                                         .row_scale = data_or_null(scale),
                                         .dx = input.data_ptr(),
                                         .drow_scale = data_or_null(dscale),
                                         .x_stride = input.stride(0),
                                         .dx_stride = input.stride(0)},
                                        KernelContext(input));
           return std::vector<at::Tensor>{input, dscale};
         });
  return y;
}

at::Tensor sigmoid_gate(const at::Tensor& x, const at::Tensor& gate) {
  at::Tensor y;
  {
    const NoAutograd guard;
    y = x.detach() * at::sigmoid(gate.detach());
  }
  record("sigmoid_gate", {x, gate}, {y}, {x, gate}, [](auto&& grads, Saved& saved) {
    const NoAutograd guard;
    const at::Tensor open = at::sigmoid(saved[1]);
    return std::vector<at::Tensor>{grads[0] * open, (grads[0] * saved[0]).sum(1, /*keepdim=*/true) *
                                                        open * (1 - open)};
  });
  return y;
}

at::Tensor tanh(const at::Tensor& x) {
  at::Tensor y;
  {
    const NoAutograd guard;
    y = at::tanh(x.detach());
  }
  record("tanh", {x}, {y}, {y}, [](auto&& grads, Saved& saved) {
    const NoAutograd guard;
    return std::vector<at::Tensor>{at::tanh_backward(grads[0], saved[0])};
  });
  return y;
}

at::Tensor dropout_rows(Rows rows, const SequenceLayout& layout) {
  if (rows == Rows::kSamples) {
    const at::Tensor starts = at::tensor(layout.sample_starts, at::kLong).slice(0, 0, layout.batch);
    return layout.row_ids.index_select(0, to_device(starts, layout.row_ids.device()));
  }
  return rows == Rows::kAllTokens || planted("dropout_by_local_index")
             ? layout.row_ids
             : layout.outer(layout.row_ids);
}

at::Tensor dropout_values(const at::Tensor& x, const DropoutSite& site,
                          const std::array<uint32_t, 2>& key, const at::Tensor& row_ids) {
  const NoAutograd guard;
  const at::Tensor input = x.detach().contiguous();
  at::Tensor out = at::empty_like(input);
  kernels::dropout({.dtype = kernel_dtype(input.scalar_type()),
                    .rows = input.size(0),
                    .cols = input.size(1),
                    .x = input.data_ptr(),
                    .y = out.data_ptr(),
                    .p = site.p,
                    .key = key,
                    .site = site.site,
                    .row_ids = reinterpret_cast<const uint64_t*>(row_ids.data_ptr<int64_t>()),
                    .feature_offset = site.feature_offset},
                   KernelContext(input));
  return out;
}

at::Tensor dropout(const at::Tensor& x, const DropoutSite& site, const ForwardContext& ctx) {
  if (!ctx.training || site.p == 0) return x;
  const auto key = Stream(ctx.seed, "dropout").key();
  const at::Tensor rows = dropout_rows(site.rows, *ctx.layout);
  at::Tensor y = dropout_values(x, site, key, rows);
  record("dropout", {x}, {y}, {rows}, [site, key](auto&& grads, Saved& saved) {
    return std::vector<at::Tensor>{dropout_values(grads[0], site, key, saved[0])};
  });
  return y;
}

} // namespace pentatron::nn
