/// y = x W^T + b, where every tensor rank has all of W and applies it to its own rows.
///
/// Shapes: x [n, in] -> [n, out]. Parameters: weight [out, in], bias [out]. No collectives.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "pentatron/nn/context.h"
#include "pentatron/nn/module.h"
#include "pentatron/parallel/tensor/linear_adapter.h"

namespace pentatron::parallel {

class WholeLinear {
 public:
  /// What the rows of x are: the tokens of the rank, or one for each sample on all ranks.
  enum class Of : uint8_t { kTokens, kSamples };
  struct Options {
    int64_t in = 0;
    int64_t out = 0;
    double init_std = 0.02;
    Of of = Of::kTokens;
  };
  WholeLinear(const nn::Scope& scope, const Options& options, const TensorParallel& tp);
  at::Tensor forward(const at::Tensor& x, const nn::ForwardContext& ctx) const;

 private:
  nn::Param *weight_, *bias_;
  std::shared_ptr<const LinearAdapter> adapter_; ///< null: none
};

} // namespace pentatron::parallel
