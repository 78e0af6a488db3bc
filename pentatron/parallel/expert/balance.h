/// What keeps experts equally busy: auxiliary losses of the router, as gradients of its logits, and
/// the expert bias.
///
/// With p the scores of a token, divided by their sum; P_i their sum over tokens and c_i the
/// choices of expert i, before any is dropped, both over real tokens alone; E experts, k of a
/// token:
///   z          logsumexp(logits)^2, mean over the tokens of a step
///   sequence   E / (k S^2) sum_i P_i c_i over the S tokens of a sample, mean over samples
///   microbatch the same over the tokens of a microbatch, mean over microbatches
///   global     E sum_i (P_i / T) (c_i / sum of c), P over the T tokens of a step and c of the step
///              before it; the first step has none. The choices of a step are not known before the
///              first of its backward passes.
/// Choices are constants. Equal load gives 1. All but the microbatch's are the same in any layout.
/// Sources: Fedus et al. 2021 (arXiv:2101.03961) eq. 4; Zoph et al. 2022 (arXiv:2202.08906) eq. 5;
/// DeepSeek-V3 (arXiv:2412.19437) eq. 16 to 20; Qiu et al. 2025 (arXiv:2501.11873).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "pentatron/comm/group.h"
#include "pentatron/nn/context.h"
#include "pentatron/parallel/expert/router.h"

namespace pentatron::parallel {

enum class Balance : uint8_t { kGlobal, kSequence, kMicrobatch };

/// Names of the loss terms; in the log "z_loss".
inline constexpr const char* kZLoss = "z loss";
std::string balance_term(Balance balance);

struct AuxiliaryOptions {
  std::vector<Balance> balance = {}; ///< their losses are added
  bool z_loss = false;
};

struct AuxiliaryInputs {
  at::Tensor logits;  ///< [T, E]
  at::Tensor experts; ///< [T, k] int64
  at::Tensor samples; ///< [T] int64: number of a token's sample in the microbatch
  at::Tensor real;    ///< [T] bool; undefined: all tokens are
};

/// probs as they are, with the gradients of the terms that ctx.loss_scales has for the logits. Adds
/// the values of these terms over the tokens of this rank to ctx. Collective over `ranks`, which
/// have other tokens of the same samples, for terms of samples and microbatches.
at::Tensor with_auxiliary_losses(const at::Tensor& probs, const AuxiliaryInputs& inputs,
                                 const AuxiliaryOptions& options, const RouterOptions& router,
                                 const std::string& layer, const comm::Group& ranks,
                                 const nn::ForwardContext& ctx);

/// How many real tokens chose each expert. [E] int64
at::Tensor choice_counts(const at::Tensor& experts, const at::Tensor& real, int64_t num_experts);

/// bias_i += rate sign(mean of counts - counts_i), decided in integers. counts [E] int64 of a step
void update_expert_bias(const at::Tensor& bias, const at::Tensor& counts, double rate);

} // namespace pentatron::parallel
