/// The adapters of a run: the section `peft` as a plan for the model, settings that it excludes,
/// and the initial values of adapters.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "pentatron/checkpoint/adapters/adapter_modules.h"
#include "pentatron/models/param_specs.h"
#include "pentatron/nn/adapter.h"
#include "pentatron/parallelize/parallelize.h"
#include "pentatron/trainer/config.h"

namespace pentatron::trainer {

/// Adds what a run with adapters cannot do, and names that match nothing.
void check_adapters(const Config& config, config::Violations& violations);

/// The linear layers that get adapters; none without adapters.
std::vector<checkpoint::AdaptedModule> adapted_modules(const Config& config);
/// The same as models take it; null without adapters.
std::shared_ptr<const nn::AdapterPlan> plan_adapters(const Config& config);

/// The parameters of the adapters over all ranks.
models::ParamSpecs adapter_specs(const Config& config);

/// Gives the section the settings of the adapter in peft.load, and keeps the rest.
void adopt_adapter(checkpoint::AdapterSettings& settings, const std::string& load);

/// The adapters' values at the beginning of a run, beside a base that has its values: those of
/// peft.load, or initial ones. Collective over tp and dp.
void begin_adapters(const parallelize::TrainingModel& model, const Config& config,
                    const comm::Group& tp);

} // namespace pentatron::trainer
