/// Turns a dense model into a mixture of experts that computes the same: every expert starts as a
/// copy of its layer's MLP, and the weights of a token's experts sum to 1. Training makes the
/// experts differ. Source: Komatsuzaki et al. 2023 (arXiv:2212.05055).
#pragma once

#include <cstdint>

#include "pentatron/checkpoint/model_source.h"

namespace pentatron::checkpoint {

struct UpcycleOptions {
  int64_t experts = 0; ///< 2 to models::kMostExperts
  int64_t top_k = 2;
};

/// `dense` must outlive the result. Routers begin with random numbers, by their names. Throws
/// ConfigError if the model has experts or cannot have any, or top_k is not 1 to experts.
std::unique_ptr<ModelSource> upcycled(ModelSource& dense, const UpcycleOptions& options);

} // namespace pentatron::checkpoint
