/// The weights that a run starts from, read from the files of a model.
#pragma once

#include <optional>
#include <string>

#include "pentatron/checkpoint/adapters/adapter_source.h"
#include "pentatron/checkpoint/sharded/folders.h"
#include "pentatron/parallelize/parallelize.h"
#include "pentatron/trainer/config.h"

namespace pentatron::trainer {

/// What open_model() takes, of a run that begins with weights that are no parameters of a
/// checkpoint as they are: hf:DIR, FILE.gguf, or with checkpoint.finetune a checkpoint of adapters.
std::optional<std::string>
weights_elsewhere(const CheckpointConfig& config,
                  const std::optional<checkpoint::FoundCheckpoint>& found);

/// Reads them from what open_model() takes, but for adapters. `base`: the model has to be that one,
/// if a digest is known, and its digest is filled in; null: not asked for.
void load_weights(const std::string& where, const parallelize::TrainingModel& model,
                  const Config& config, const comm::Group& world,
                  checkpoint::AdapterBase* base = nullptr);

/// Gives the frozen parameters of a run with adapters their values: those of the model that it
/// starts from, or that the run in `found`, which it resumes, started from.
checkpoint::AdapterBase load_base(const Config& config,
                                  const std::optional<checkpoint::FoundCheckpoint>& found,
                                  const parallelize::TrainingModel& model,
                                  const comm::Group& world);

} // namespace pentatron::trainer
