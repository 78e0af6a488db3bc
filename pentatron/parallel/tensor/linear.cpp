#include "pentatron/parallel/tensor/linear.h"

#include <ATen/ATen.h>

#include "pentatron/comm/differentiable.h"
#include "pentatron/nn/ops/ops.h"

namespace pentatron::parallel {

using nn::Placement;

ColumnParallelLinear::ColumnParallelLinear(const nn::Scope& scope, const Options& options,
                                           comm::Group tp)
    : tp_(std::move(tp)) {
  int64_t out = 0;
  for (const nn::FusedPart& part : options.parts) out += part.units * part.unit_size;
  const std::map<std::string, Placement> placements = {{"tp", Placement::shard(0)}};
  weight_ = &scope.param(
      "weight",
      {.name = {}, .shape = {out, options.in}, .parts = options.parts, .placements = placements},
      nn::Init::normal(options.init_std));
  if (options.bias) {
    bias_ = &scope.param(
        "bias", {.name = {}, .shape = {out}, .parts = options.parts, .placements = placements},
        nn::Init::constant(0));
  }
}

at::Tensor ColumnParallelLinear::forward(const at::Tensor& x, const nn::ForwardContext& ctx) const {
  return nn::linear(comm::copy_to(x, tp_), *weight_, bias_, ctx);
}

RowParallelLinear::RowParallelLinear(const nn::Scope& scope, const Options& options, comm::Group tp)
    : tp_(std::move(tp)) {
  weight_ = &scope.param(
      "weight",
      {.name = {}, .shape = {options.out, options.in}, .placements = {{"tp", Placement::shard(1)}}},
      nn::Init::normal(options.init_std));
  if (options.bias) bias_ = &scope.vector("bias", options.out, nn::Init::constant(0));
}

at::Tensor RowParallelLinear::forward(const at::Tensor& x, const nn::ForwardContext& ctx) const {
  if (tp_.size() == 1) return nn::linear(x, *weight_, bias_, ctx);
  const at::Tensor y = comm::reduce_from(nn::linear(x, *weight_, nullptr, ctx), tp_);
  return bias_ != nullptr ? nn::add_bias(y, *bias_, ctx) : y;
}

} // namespace pentatron::parallel
