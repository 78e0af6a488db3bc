/// The rules that the table of rules.cpp lists, one file each.
#pragma once

#include <map>
#include <memory>

#include "pentatron/optim/rule.h"

namespace pentatron::optim {

/// AdamW (Loshchilov & Hutter 2019, arXiv:1711.05101).
std::unique_ptr<Rule> make_adamw(const OptimizerConfig& config);
/// Stochastic gradient descent with momentum, as in torch.optim.SGD.
std::unique_ptr<Rule> make_sgd(const OptimizerConfig& config);
/// Muon (Jordan et al. 2024, kellerjordan.github.io/posts/muon) of matrices, each by itself.
std::unique_ptr<Rule> make_muon(const OptimizerConfig& config);
/// Muon whose orthogonal factor is divided by the root of its running mean square: AdaMuon (Si et
/// al. 2025, arXiv:2507.11005) or NorMuon (Li et al. 2025, arXiv:2510.05491), in the order of
/// operations of Megatron's adaptive_muon.
std::unique_ptr<Rule> make_adaptive_muon(const OptimizerConfig& config);
/// Adafactor (Shazeer & Stern 2018, arXiv:1804.04235) of matrices, each by itself, and of vectors.
std::unique_ptr<Rule> make_adafactor(const OptimizerConfig& config);
std::unique_ptr<Rule> make_adafactor_of_vectors(const OptimizerConfig& config);
/// Lion (Chen et al. 2023, arXiv:2302.06675, algorithm 2), with decoupled weight decay.
std::unique_ptr<Rule> make_lion(const OptimizerConfig& config);

/// Whether a state is rounded by chance (narrow_state.h).
bool by_chance(const RuleState& state);

/// By name, of the states of all rules that a run with this configuration has on any rank.
std::map<std::string, RuleState::Growth> growth_of_states(const OptimizerConfig& config);

} // namespace pentatron::optim
