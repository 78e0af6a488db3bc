/// The adapters of a run: the section `peft` as a plan for the model, settings that it excludes,
/// and the initial values of adapters.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "pentatron/checkpoint/adapters/peft_files.h"
#include "pentatron/models/param_specs.h"
#include "pentatron/nn/adapter.h"
#include "pentatron/parallelize/parallelize.h"
#include "pentatron/trainer/config.h"

namespace pentatron::trainer {

/// Adds violations for settings that do not work with adapters, and for names that match no module.
void check_adapters(const Config& config, config::Violations& violations);

/// What gets adapters and what trains beside them, without tensors; nothing without adapters.
checkpoint::Adapter configured_adapter(const Config& config);
/// The adapters as an argument for models; null without adapters.
std::shared_ptr<const nn::AdapterPlan> plan_adapters(const Config& config);

/// The parameters that train, of the adapters and beside them, over all ranks.
models::ParamSpecs adapter_specs(const Config& config);

/// Takes the adapter's settings from peft.load into the section; other keys keep their values.
void adopt_adapter(checkpoint::AdapterSettings& settings, const std::string& load);

/// Whether a run can go on with what it took from peft.load; throws as check_saved_modules(), and
/// ConfigError for values that no run of its model can have.
void check_adopted(const checkpoint::AdapterSettings& adopted, Config config,
                   config::Violations& violations);

/// The adapter in peft.load with its tensors; `base`: as in begin_adapters(). Throws as
/// checkpoint::read_peft_tensors().
checkpoint::Adapter loaded_adapter(const Config& config, const std::string& base);

/// Sets the adapters' values at the start of a run, from peft.load or newly initialized. The base
/// must have its values, from the model `base` (an argument for open_model(); empty: new ones).
/// Collective over tp and dp.
void begin_adapters(const parallelize::TrainingModel& model, const Config& config,
                    const std::string& base, const comm::Group& tp);

} // namespace pentatron::trainer
