#include "pentatron/layers/heads_norm.h"

#include <ATen/ATen.h>

#include "pentatron/base/planted_bug.h"
#include "pentatron/comm/collectives.h"
#include "pentatron/kernels/norm/norm.h"
#include "pentatron/nn/ops/kernel_args.h"

namespace pentatron::layers {

namespace {

/// How rows of the norm lie in x [T, heads, d]: heads, or the whole projection of a token.
struct NormRows {
  int64_t count = 0, size = 0;
  kernels::RowLayout layout(const at::Tensor& x) const {
    if (size == x.size(2))
      return {.stride = x.stride(1), .group_rows = x.size(1), .group_stride = x.stride(0)};
    return {.stride = x.stride(0)};
  }
};

NormRows rows_of(const at::Tensor& x, QkNorm kind) {
  if (kind == QkNorm::kHead) return {x.size(0) * x.size(1), x.size(2)};
  return {x.size(0), x.size(1) * x.size(2)};
}

nn::ShardSpec weight_spec(const HeadsNormOptions& o) {
  if (o.kind == QkNorm::kProjection)
    return {.name = {},
            .shape = {o.heads * o.head_size},
            .parts = {{"heads", o.heads, o.head_size, o.in_groups}},
            .placements = {{"tp", nn::Placement::shard(0)}}};
  return {.name = {},
          .shape = {o.head_size},
          .placements = {{"tp", planted("head_norm_gradient_not_summed")
                                    ? nn::Placement::replicate()
                                    : nn::Placement::partial()}}}; // used by split heads
}

} // namespace

HeadsNorm::HeadsNorm(const nn::Scope& scope, const std::string& name,
                     const HeadsNormOptions& options, const parallel::TensorParallel& tp)
    : options_(options), group_(tp.group),
      copies_(std::max<int64_t>(1, options.in_groups ? tp.size() / options.heads : 1)),
      weight_(&scope.param(name, weight_spec(options),
                           nn::Init::constant(options.zero_centered ? 0 : 1))) {}

at::Tensor HeadsNorm::scale(at::ScalarType type) const {
  const at::Tensor w = weight_->value().to(type).view({-1, options_.head_size});
  return options_.zero_centered ? w + 1 : w;
}

at::Tensor HeadsNorm::forward(const at::Tensor& x, at::Tensor& rstd) const {
  const at::ScalarType acc = nn::acc_dtype(x.scalar_type());
  const NormRows rows = rows_of(x, options_.kind);
  if (!is_local()) {
    const at::Tensor wide = x.to(acc);
    const at::Tensor squares = wide.square().sum(at::IntArrayRef{1, 2});
    comm::all_reduce_(squares, comm::ReduceOp::kSum, group_);
    const auto n = static_cast<double>(options_.heads * options_.head_size *
                                       (planted("shared_heads_counted_by_all") ? 1 : copies_));
    rstd = squares.div_(n).add_(options_.eps).rsqrt_();
    return (wide * rstd.view({-1, 1, 1}) * scale(acc)).to(x.scalar_type());
  }
  at::Tensor y = at::empty(x.sizes(), x.options());
  rstd = at::empty({rows.count}, x.options().dtype(acc));
  kernels::norm_forward({.kind = kernels::NormKind::kRmsNorm,
                         .dtype = nn::kernel_dtype(x.scalar_type()),
                         .weight_dtype = nn::kernel_dtype(x.scalar_type()),
                         .rows = rows.count,
                         .cols = rows.size,
                         .x = x.data_ptr(),
                         .weight = weight_->value().data_ptr(),
                         .y = y.data_ptr(),
                         .rstd = rstd.data_ptr(),
                         .x_rows = rows.layout(x),
                         .eps = options_.eps,
                         .zero_centered = options_.zero_centered},
                        nn::KernelContext(x));
  return y;
}

void HeadsNorm::backward(const at::Tensor& dx, const at::Tensor& dy, const at::Tensor& x,
                         const at::Tensor& rstd) const {
  const bool train = weight_->trainable;
  const NormRows rows = rows_of(x, options_.kind);
  if (!is_local()) {
    // Ranks that share a head hold addends of its dy, so the sum of the dots is that of all heads;
    // the term that it makes is divided among them.
    const at::ScalarType acc = nn::acc_dtype(x.scalar_type());
    const at::Tensor normed = x.to(acc) * rstd.view({-1, 1, 1}), wide = dy.to(acc),
                     scaled = wide * scale(acc);
    const at::Tensor dot = (scaled * normed).sum(at::IntArrayRef{1, 2});
    if (!planted("projection_norm_dot_not_summed"))
      comm::all_reduce_(dot, comm::ReduceOp::kSum, group_);
    const auto n = static_cast<double>(options_.heads * options_.head_size * copies_);
    dx.copy_((scaled - normed * (dot / n).view({-1, 1, 1})) * rstd.view({-1, 1, 1}));
    if (train) weight_->accumulate((wide * normed).sum(0).flatten());
    return;
  }
  const kernels::NormBackward args{.kind = kernels::NormKind::kRmsNorm,
                                   .dtype = nn::kernel_dtype(x.scalar_type()),
                                   .weight_dtype = nn::kernel_dtype(x.scalar_type()),
                                   .rows = rows.count,
                                   .cols = rows.size,
                                   .dy = dy.data_ptr(),
                                   .x = x.data_ptr(),
                                   .weight = weight_->value().data_ptr(),
                                   .rstd = rstd.data_ptr(),
                                   .dx = dx.data_ptr(),
                                   .dweight = train ? weight_->main_grad().data_ptr() : nullptr,
                                   .x_rows = rows.layout(x),
                                   .dx_rows = rows.layout(dx),
                                   .zero_centered = options_.zero_centered};
  kernels::norm_backward(
      args, nn::KernelContext(x, kernels::workspace_bytes(args, nn::kernel_device(x))));
  if (train) weight_->accumulated();
}

} // namespace pentatron::layers
