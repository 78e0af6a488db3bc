/// From a configuration and a rank's groups to what that rank trains: model, storage, optimizer.
/// The only place that knows the order.
#pragma once

#include <memory>
#include <string>

#include "pentatron/comm/group.h"
#include "pentatron/models/gpt.h"
#include "pentatron/nn/param_store.h"
#include "pentatron/optim/optimizer.h"

namespace pentatron::build {

/// A rank's place.
struct Groups {
  comm::Group world; ///< all ranks
  comm::Group tp;
  comm::Group dp;
};

struct ModelOptions {
  models::GptConfig config;
  at::ScalarType dtype = at::kFloat;
  at::Device device = at::kCPU;
  int64_t max_sequence = 0;
  bool recompute = false;
  bool gradients = true;
};

/// A model with storage on its device; values are not yet set.
struct RankModel {
  std::unique_ptr<models::Gpt> gpt;
  std::unique_ptr<nn::ResidentStore> store;
};

RankModel make_model(const ModelOptions& options, const Groups& groups);

} // namespace pentatron::build
