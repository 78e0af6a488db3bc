/// Which experts work on a token, and with what weight.
///
/// Shapes: T = tokens, E = experts, k = experts of a token. Scores and probs are in the accumulate
/// type, whatever the type of the model. Sources: Shazeer et al. 2017 (arXiv:1701.06538);
/// DeepSeek-V3 (arXiv:2412.19437) sec. 2.1.2 for sigmoid scores, groups and the bias.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "pentatron/nn/context.h"
#include "pentatron/parallel/expert/scores.h"

namespace pentatron::parallel {

struct RouterOptions {
  int64_t experts = 0;
  int64_t top_k = 2;
  RouterScore score = RouterScore::kSoftmax;
  /// Scores of all experts first, then the selection; else the softmax is of the selected logits.
  /// Other scores than softmax are always of all.
  bool score_first = false;
  bool normalize = false; ///< the selected scores are divided by their sum
  double scaling = 1;     ///< of probs
  int64_t groups = 0;     ///< experts are selected in `group_top_k` of so many groups; 0: in all
  int64_t group_top_k = 0;
  int64_t group_score_top_k = 1; ///< a group's score is the sum of its best so many
};

/// x W^T + b in the accumulate type: a rounded logit could choose another expert.
///   x [T, h], weight [E, h], bias [E] or null -> [T, E]
at::Tensor router_logits(const at::Tensor& x, nn::Param& weight, nn::Param* bias,
                         const nn::ForwardContext& ctx);

struct Routed {
  at::Tensor experts; ///< [T, k] int64, best first; of equal ones the lowest first
  at::Tensor probs;   ///< [T, k], differentiable
};

/// Inputs other than the scores that determine which experts a token gets. The experts' weights
/// always come from the scores.
struct SelectionInputs {
  at::Tensor bias;       ///< [E], added to what is compared; may be undefined
  at::Tensor forced;     ///< [T, k] int64: these, whatever the scores; may be undefined
  bool sinkhorn = false; ///< compare sinkhorn(logits)
};

///   logits [T, E] in the accumulate type
Routed route(const at::Tensor& logits, const SelectionInputs& selection,
             const RouterOptions& options);

/// exp(logits), rows and columns scaled in turn until every token gives as much as any other and
/// every expert gets as much. Of the tokens of one rank.
/// Source: Clark et al. 2022 (arXiv:2202.01169) app. B.2.1.
at::Tensor sinkhorn(const at::Tensor& logits);

/// Experts of equal load by the address of a token alone. row_ids [T] -> [T, k] int64
at::Tensor balanced_experts(const at::Tensor& row_ids, const RouterOptions& options);

/// x times random numbers between 1 - eps and 1 + eps, functions of (seed, site, sample, position,
/// feature). x [T, h], row_ids [T] int64
at::Tensor jitter(const at::Tensor& x, const at::Tensor& row_ids, double eps, uint32_t site,
                  uint64_t seed);

} // namespace pentatron::parallel
