/// The norm of a layer.
#pragma once

#include <utility>

#include <ATen/core/Tensor.h>

#include "pentatron/nn/context.h"
#include "pentatron/nn/module.h"
#include "pentatron/nn/ops/ops.h"
#include "pentatron/parallel/tensor/tensor_parallel.h"

namespace pentatron::layers {

/// A norm's parameters and rule.
class Norm {
 public:
  Norm(const nn::Scope& scope, int64_t hidden, const nn::NormOptions& options,
       const parallel::TensorParallel& tp);
  at::Tensor forward(const at::Tensor& x, const nn::ForwardContext& ctx) const;
  /// (x + residual, norm of it)
  std::pair<at::Tensor, at::Tensor> add_forward(const at::Tensor& x, const at::Tensor& residual,
                                                const nn::ForwardContext& ctx) const;

 private:
  nn::NormOptions options_;
  nn::Param* weight_;
  nn::Param* bias_ = nullptr;
};

} // namespace pentatron::layers
