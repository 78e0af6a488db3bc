/// The weights that a run starts from, read from the files of a model.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "pentatron/checkpoint/adapters/adapter_source.h"
#include "pentatron/checkpoint/sharded/folders.h"
#include "pentatron/parallelize/parallelize.h"
#include "pentatron/trainer/config.h"

namespace pentatron::trainer {

/// Returns the argument for open_model() if the run starts from weights that are not a plain
/// pentatron checkpoint: hf:DIR, FILE.gguf or, with checkpoint.finetune, a checkpoint of adapters.
/// Otherwise returns nothing.
std::optional<std::string>
weights_elsewhere(const CheckpointConfig& config,
                  const std::optional<checkpoint::FoundCheckpoint>& found);

/// Throws CheckpointError if a run of this configuration cannot start from the model. Returns the
/// parameters that it lacks and that get new values.
std::vector<std::string> check_tensors(const checkpoint::ModelSource& source, const Config& config);

/// Loads the weights at `where` (an argument for open_model()), except adapters. If `base` is not
/// null and has a digest, the model must match it; the digest of the loaded model is stored in
/// `base`.
void load_weights(const std::string& where, const parallelize::TrainingModel& model,
                  const Config& config, const comm::Group& world,
                  checkpoint::AdapterBase* base = nullptr);

/// What the checkpoint of a run with adapters says about the model that they adapt.
checkpoint::AdapterBase stored_base(const std::string& folder);
/// Returns the model to read (an argument for open_model(); empty: new weights) for the adapters in
/// `folder`: `given`, which is peft.base, or the stored one. Throws an error if it cannot be
/// opened.
std::string readable_base(const std::string& given, const checkpoint::AdapterBase& stored,
                          const std::string& folder);

/// Loads the frozen parameters of a run with adapters, from the model that the run starts from or,
/// if it resumes the run in `found`, from the one with which that run started.
checkpoint::AdapterBase load_base(const Config& config,
                                  const std::optional<checkpoint::FoundCheckpoint>& found,
                                  const parallelize::TrainingModel& model,
                                  const comm::Group& world);

/// Loads the same once more.
void load_base(const checkpoint::AdapterBase& base, const parallelize::TrainingModel& model,
               const Config& config, const comm::Group& world);

} // namespace pentatron::trainer
