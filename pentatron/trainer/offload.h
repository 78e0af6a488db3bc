/// Applies the section `offload`: where activations and the optimizer's state are stored.
#pragma once

#include <memory>

#include "pentatron/nn/offload.h"
#include "pentatron/optim/optimizer.h"
#include "pentatron/trainer/config.h"
#include "pentatron/trainer/memory_plan.h"

namespace pentatron::trainer {

/// Adds violations for settings of the section that have no effect or need a folder.
void check_offload(const Config& config, config::Violations& violations);
/// The same of offload.activations, in a configuration whose pipeline stages are valid.
void check_offloaded_layers(const Config& config, config::Violations& violations);

/// Of one rank; null: nothing leaves.
std::shared_ptr<nn::Offload> activation_offload(const OffloadConfig& config, at::Device device);
optim::AwayState optimizer_offload(const OffloadConfig& config, at::Device device);

/// "disk         about 1.2 GiB in offload.dir=DIR, which has 80.0 GiB free"; empty: none is needed.
std::string describe_disk(const Config& config, const MemoryPlan& plan);
/// Throws ConfigError if the disk of offload.dir has less free than the plan needs.
void require_disk(const Config& config, const MemoryPlan& plan);

} // namespace pentatron::trainer
