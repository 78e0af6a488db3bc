/// Saving and resuming a run on one rank: a folder with everything that the next step depends on,
/// written aside and renamed.
///
///   DIR/iter_0000100/model.safetensors      parameters, by name
///   DIR/iter_0000100/optimizer.safetensors  optimizer state, as "<parameter>/<what>"
///   DIR/iter_0000100/state.json             counters, and the configuration
///   DIR/latest                              name of the newest complete folder
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "pentatron/nn/param.h"
#include "pentatron/optim/optimizer.h"

namespace pentatron::checkpoint {

struct TrainState {
  int64_t iteration = 0;
  int64_t consumed_samples = 0;
  int64_t skipped_iterations = 0;
  int64_t nan_iterations = 0;
  std::string config_yaml;
};

/// Writes the folder of state.iteration and then `latest`; keeps the newest `keep` folders (0:
/// all). Returns the folder.
std::filesystem::path save_train_state(const std::filesystem::path& dir, const TrainState& state,
                                       nn::ParamList& params, optim::Optimizer& optimizer,
                                       int64_t keep);

/// The folder that `latest` names, if there is one. Throws CheckpointError if `latest` names what
/// is not there.
std::optional<std::filesystem::path> latest_train_state(const std::filesystem::path& dir);

/// Fills parameters and optimizer bit for bit. Throws CheckpointError if a tensor is missing, left
/// over or of another shape or type.
TrainState load_train_state(const std::filesystem::path& folder, nn::ParamList& params,
                            optim::Optimizer& optimizer);

/// The parameters alone, for generation and evaluation.
void load_params(const std::filesystem::path& folder, nn::ParamList& params);

/// The configuration that the folder was written with, as YAML.
std::string saved_config(const std::filesystem::path& folder);

} // namespace pentatron::checkpoint
