/// The prediction of an encoder for a whole sample, from the hidden state of its first token.
///
/// Shapes, B = samples, T = tokens, h = hidden, C = outputs, t = tp size. Everything but the hidden
/// states [T, h] (under sequence parallel [T / t, h]) is on every tensor rank alike.
/// Source: Devlin et al. 2019 (arXiv:1810.04805) sec. 3.
#pragma once

#include <string>

#include <ATen/core/Tensor.h>

#include "pentatron/nn/context.h"
#include "pentatron/nn/module.h"
#include "pentatron/parallel/tensor/tensor_parallel.h"
#include "pentatron/parallel/tensor/whole_linear.h"

namespace pentatron::layers {

/// The first token of every sample: x [T, h] -> [B, h]. Collectives: under sequence parallel one
/// all-reduce of [B, h] in forward.
at::Tensor first_tokens(const at::Tensor& x, const parallel::TensorParallel& tp,
                        const nn::ForwardContext& ctx);

/// tanh of a linear layer over first_tokens(). Parameters: weight [h, h], bias [h].
class Pooler {
 public:
  Pooler(const nn::Scope& scope, int64_t hidden, double init_std,
         const parallel::TensorParallel& tp);
  at::Tensor forward(const at::Tensor& first, const nn::ForwardContext& ctx) const;

 private:
  parallel::WholeLinear dense_;
};

struct SampleHeadOptions {
  int64_t hidden = 0;
  int64_t outputs = 0;
  double dropout = 0; ///< of its input
  uint32_t dropout_site = 0;
  double init_std = 0.02;
  std::string term; ///< the loss term
};

/// A linear layer of samples and its loss. Parameters: weight [C, h], bias [C].
class SampleHead {
 public:
  SampleHead(const nn::Scope& scope, const SampleHeadOptions& options);
  /// x [B, h] -> [B, C].
  at::Tensor logits(const at::Tensor& x, const nn::ForwardContext& ctx) const;
  /// Cross-entropy of logits [B, C] and labels [B] int64, negative: none -> scalar: sum times
  /// ctx.loss_scale(term). The unscaled sum is added to the term's. Its gradient must be 1.
  at::Tensor class_loss(const at::Tensor& logits, const at::Tensor& labels,
                        const nn::ForwardContext& ctx) const;
  /// Squared error of values [B, 1] and labels [B] float64, NaN: none.
  at::Tensor squared_loss(const at::Tensor& values, const at::Tensor& labels,
                          const nn::ForwardContext& ctx) const;

 private:
  SampleHeadOptions options_;
  nn::Param *weight_, *bias_;
};

} // namespace pentatron::layers
