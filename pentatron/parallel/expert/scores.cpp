#include "pentatron/parallel/expert/scores.h"

#include <ATen/ATen.h>

namespace pentatron::parallel {

at::Tensor router_scores(const at::Tensor& logits, RouterScore score) {
  switch (score) {
  case RouterScore::kSoftmax:
    return at::softmax(logits, 1);
  case RouterScore::kSigmoid:
    return at::sigmoid(logits);
  case RouterScore::kSqrtSoftplus:
    return (logits.clamp_min(0) + at::log1p((-logits.abs()).exp())).sqrt();
  }
  return {};
}

at::Tensor router_scores_backward(const at::Tensor& grad, const at::Tensor& scores,
                                  const at::Tensor& logits, RouterScore score) {
  switch (score) {
  case RouterScore::kSoftmax:
    return scores * (grad - (grad * scores).sum(1, /*keepdim=*/true));
  case RouterScore::kSigmoid:
    return grad * scores * (1 - scores);
  case RouterScore::kSqrtSoftplus: // far below 0 sigmoid and softplus are both exp
    return grad * at::where(scores > 0, at::sigmoid(logits) / (2 * scores), 0);
  }
  return {};
}

} // namespace pentatron::parallel
