/// What record(), slots and recomputed modules ask of each other.
#pragma once

#include <memory>
#include <vector>

#include "pentatron/nn/saved.h"

namespace pentatron::nn::detail {

/// Slots whose tensor a recomputed module makes again wait for it from here on.
void claim(const std::shared_ptr<Saved>& saved);

/// Shows slots to the hooks and the account of this thread.
void keep(const std::shared_ptr<Saved>& saved);

/// An operator runs without autograd: if a module runs again, these are for the slots of its first
/// run.
void deliver(const std::vector<at::Tensor>& tensors);

/// Outputs of modules so far are kept by operators from here on.
void forget_outputs();

} // namespace pentatron::nn::detail
