/// train.recompute: what is recomputed in the backward pass, and the automatic choice.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "pentatron/comm/group.h"
#include "pentatron/nn/recomputed_parts.h"
#include "pentatron/trainer/config.h"
#include "pentatron/trainer/memory_plan.h"

namespace pentatron::trainer {

/// Of a run whose choice is made: recompute is not auto.
nn::Recomputation recomputation(const TrainConfig& train);

struct RecomputeChoice {
  std::string line;    ///< what was chosen and why, for describe_limits(); empty: nothing to choose
  std::string warning; ///< if nothing fits
};
/// Where train.recompute is auto: the settings that take the least time of those with which the
/// plan of the rank that needs most fits into train.recompute_memory_limit, or else all ranks into
/// `free_bytes` of this machine; where nothing fits, those that take the least memory.
RecomputeChoice choose_recomputation(Config& config, int world_size, const LocalRanks& here,
                                     std::optional<int64_t> free_bytes);

/// With the choice that rank 0 makes for its machine, on all ranks. Collectives: of texts.
Config with_recomputation(Config config, const comm::Group& world);

/// Layers of the pipeline stage that has most: those that can be recomputed.
int64_t most_layers_of_a_stage(const Config& config);

/// For recompute_num_layers of the uniform method, where a stage has so many layers: the smallest
/// size for each number of groups, about 2 sqrt(layers) in all, in ascending order.
std::vector<int64_t> group_sizes(int64_t layers);
/// The size with which recompute=full takes the least memory.
int64_t leanest_group(Config config, int world_size);

/// Adds what is wrong with the keys of recomputation.
void check_recomputation(const TrainConfig& train, const models::ModelConfig& model,
                         config::Violations& violations);

} // namespace pentatron::trainer
