#include <ATen/ATen.h>

#include "pentatron/nn/ops/kernel_args.h"
#include "pentatron/nn/ops/ops.h"
#include "pentatron/nn/record.h"

namespace pentatron::nn {

namespace {

struct NormResult {
  at::Tensor sum, y, mean, rstd;
};

NormResult run_norm(const at::Tensor& x, const at::Tensor& residual, const Param& weight,
                    const Param* bias, const NormOptions& options) {
  NormResult r;
  const auto statistics = x.options().dtype(acc_dtype(x.scalar_type()));
  r.y = at::empty_like(x);
  r.rstd = at::empty({x.size(0)}, statistics);
  if (options.kind == kernels::NormKind::kLayerNorm) r.mean = at::empty({x.size(0)}, statistics);
  r.sum = residual.defined() ? at::empty_like(x) : x;
  kernels::norm_forward({.kind = options.kind,
                         .dtype = kernel_dtype(x.scalar_type()),
                         .weight_dtype = kernel_dtype(weight.dtype()),
                         .rows = x.size(0),
                         .cols = x.size(1),
                         .x = x.data_ptr(),
                         .residual = data_or_null(residual),
                         .sum = residual.defined() ? r.sum.data_ptr() : nullptr,
                         .weight = weight.value().data_ptr(),
                         .bias = bias != nullptr ? bias->value().data_ptr() : nullptr,
                         .y = r.y.data_ptr(),
                         .mean = data_or_null(r.mean),
                         .rstd = r.rstd.data_ptr(),
                         .eps = options.eps,
                         .zero_centered = options.zero_centered},
                        KernelContext(x));
  return r;
}

/// Gradient of the normalised rows, plus `dsum`, which arrives at them past the norm. `saved`: sum,
/// mean, rstd.
at::Tensor run_norm_backward(const at::Tensor& dy, const at::Tensor& dsum, Saved& saved,
                             Param& weight, Param* bias, const NormOptions& options) {
  const at::Tensor dx = at::empty_like(dy);
  const bool train_weight = weight.trainable, train_bias = bias != nullptr && bias->trainable;
  const kernels::NormBackward args{.kind = options.kind,
                                   .dtype = kernel_dtype(dy.scalar_type()),
                                   .weight_dtype = kernel_dtype(weight.dtype()),
                                   .rows = dy.size(0),
                                   .cols = dy.size(1),
                                   .dy = dy.data_ptr(),
                                   .x = saved[0].data_ptr(),
                                   .weight = weight.value().data_ptr(),
                                   .mean = data_or_null(saved[1]),
                                   .rstd = saved[2].data_ptr(),
                                   .dsum = data_or_null(dsum),
                                   .dx = dx.data_ptr(),
                                   .dweight =
                                       train_weight ? weight.main_grad().data_ptr() : nullptr,
                                   .dbias = train_bias ? bias->main_grad().data_ptr() : nullptr,
                                   .zero_centered = options.zero_centered};
  kernels::norm_backward(args,
                         KernelContext(dy, kernels::workspace_bytes(args, kernel_device(dy))));
  if (train_weight) weight.accumulated();
  if (train_bias) bias->accumulated();
  return dx;
}

} // namespace

at::Tensor norm(const at::Tensor& x, Param& weight, Param* bias, const NormOptions& options,
                const ForwardContext& ctx) {
  ctx.use(&weight);
  ctx.use(bias);
  NormResult r;
  {
    const NoAutograd guard;
    r = run_norm(x.detach().contiguous(), {}, weight, bias, options);
  }
  record("norm", {x}, {r.y}, {r.sum, r.mean, r.rstd},
         [&weight, bias, options](auto&& grads, Saved& saved) {
           const NoAutograd guard;
           return std::vector<at::Tensor>{
               run_norm_backward(grads[0].contiguous(), {}, saved, weight, bias, options)};
         });
  return r.y;
}

std::pair<at::Tensor, at::Tensor> add_norm(const at::Tensor& x, const at::Tensor& residual,
                                           Param& weight, Param* bias, const NormOptions& options,
                                           const ForwardContext& ctx) {
  ctx.use(&weight);
  ctx.use(bias);
  NormResult r;
  {
    const NoAutograd guard;
    r = run_norm(x.detach().contiguous(), residual.detach().contiguous(), weight, bias, options);
  }
  record("add_norm", {x, residual}, {r.sum, r.y}, {r.sum, r.mean, r.rstd},
         [&weight, bias, options](auto&& grads, Saved& saved) {
           const NoAutograd guard;
           const at::Tensor dsum = grads[0].defined() ? grads[0].contiguous() : at::Tensor();
           const at::Tensor dx =
               run_norm_backward(grads[1].contiguous(), dsum, saved, weight, bias, options);
           return std::vector<at::Tensor>{dx, dx};
         });
  return {r.sum, r.y};
}

} // namespace pentatron::nn
