#include "pentatron/parallel/tensor/whole_linear.h"

#include <ATen/ATen.h>

#include "pentatron/nn/ops/ops.h"
#include "pentatron/parallel/tensor/linear.h"

namespace pentatron::parallel {

WholeLinear::WholeLinear(const nn::Scope& scope, const Options& options, const TensorParallel& tp) {
  const bool tokens = options.of == Of::kTokens;
  const auto placements = tokens ? token_wise(tp) : std::map<std::string, nn::Placement>{};
  weight_ = &scope.param("weight",
                         {.name = {}, .shape = {options.out, options.in}, .placements = placements},
                         nn::Init::normal(options.init_std));
  if (tokens) weight_->multiplies = nn::ProductRows::kTokens;
  bias_ = &scope.param("bias", {.name = {}, .shape = {options.out}, .placements = placements},
                       nn::Init::constant(0));
  using Split = LinearAdapter::Split;
  adapter_ = LinearAdapter::make(scope, *weight_,
                                 tokens ? Split::kWholeOfTokens : Split::kWholeOfSamples, tp);
}

at::Tensor WholeLinear::forward(const at::Tensor& x, const nn::ForwardContext& ctx) const {
  return adapter_ != nullptr ? adapter_->forward(x, *weight_, bias_, ctx)
                             : nn::linear(x, *weight_, bias_, ctx);
}

} // namespace pentatron::parallel
