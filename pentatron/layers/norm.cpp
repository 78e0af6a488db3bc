#include "pentatron/layers/norm.h"

#include "pentatron/parallel/tensor/linear.h"

namespace pentatron::layers {

Norm::Norm(const nn::Scope& scope, int64_t hidden, const nn::NormOptions& options,
           const parallel::TensorParallel& tp)
    : options_(options) {
  const nn::ShardSpec spec{.name = {}, .shape = {hidden}, .placements = parallel::token_wise(tp)};
  weight_ = &scope.param("weight", spec, nn::Init::constant(options.zero_centered ? 0 : 1));
  if (options.kind == kernels::NormKind::kLayerNorm)
    bias_ = &scope.param("bias", spec, nn::Init::constant(0));
}

at::Tensor Norm::forward(const at::Tensor& x, const nn::ForwardContext& ctx) const {
  return nn::norm(x, *weight_, bias_, options_, ctx);
}

std::pair<at::Tensor, at::Tensor> Norm::add_forward(const at::Tensor& x, const at::Tensor& residual,
                                                    const nn::ForwardContext& ctx) const {
  return nn::add_norm(x, residual, *weight_, bias_, options_, ctx);
}

} // namespace pentatron::layers
