/// Scores of experts from a router's logits [T, E], and the gradient of the logits from theirs.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace pentatron::parallel {

enum class RouterScore : uint8_t { kSoftmax, kSigmoid, kSqrtSoftplus };

at::Tensor router_scores(const at::Tensor& logits, RouterScore score);
at::Tensor router_scores_backward(const at::Tensor& grad, const at::Tensor& scores,
                                  const at::Tensor& logits, RouterScore score);

/// Added to a sum of scores that may be 0.
inline constexpr double kTinyScore = 1e-20;

} // namespace pentatron::parallel
