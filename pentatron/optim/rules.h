/// The rules that the table of rules.cpp lists, one file each.
#pragma once

#include <memory>

#include "pentatron/optim/rule.h"

namespace pentatron::optim {

/// AdamW (Loshchilov & Hutter 2019, arXiv:1711.05101).
std::unique_ptr<Rule> make_adamw(const OptimizerConfig& config);
/// Stochastic gradient descent with momentum, as in torch.optim.SGD.
std::unique_ptr<Rule> make_sgd(const OptimizerConfig& config);
/// Muon (Jordan et al. 2024, kellerjordan.github.io/posts/muon) of matrices, each by itself.
std::unique_ptr<Rule> make_muon(const OptimizerConfig& config);
/// Lion (Chen et al. 2023, arXiv:2302.06675, algorithm 2), with decoupled weight decay.
std::unique_ptr<Rule> make_lion(const OptimizerConfig& config);

} // namespace pentatron::optim
