/// Brings the gradients of all ranks together: every reduction is a sum, because the loss is a sum
/// over tokens with a global denominator.
#pragma once

#include "pentatron/comm/group.h"
#include "pentatron/nn/param_store.h"

namespace pentatron::parallel {

/// Adds up what the ranks hold as addends: every parameter over dp, and those that are Partial over
/// tp over tp. Collectives: one all-reduce of the flat gradient buffer over dp; one of the gathered
/// tp-partial gradients over tp.
void reduce_gradients(const nn::ResidentStore& store, const comm::Group& dp, const comm::Group& tp);

} // namespace pentatron::parallel
