/// Saving and resuming a run on one rank: a folder with everything that the next step depends on,
/// written aside and renamed.
///
///   DIR/iter_0000100/model.safetensors      parameters, by name
///   DIR/iter_0000100/optimizer.safetensors  optimizer state, as "<parameter>/<what>"
///   DIR/iter_0000100/state.json             counters, the configuration, and sizes and CRC-32C of
///                                           all files
///   DIR/latest                              name of the folder to resume from
///
/// A process killed at any moment leaves whole folders and, at most, an iter_*.tmp-* that the next
/// save removes.
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

/// Writes the folder of state.iteration (replacing one of that name) and then `latest`. Of the
/// folders up to this iteration the newest `keep` stay (0: all); folders of later iterations, which
/// another run left, are not touched. Returns the folder.
std::filesystem::path save_train_state(const std::filesystem::path& dir, const TrainState& state,
                                       nn::ParamList& params, optim::Optimizer& optimizer,
                                       int64_t keep);

/// The newest whole checkpoint: the folder that `latest` names or, where that is damaged or
/// missing, the nearest earlier one that is whole (the last one where `latest` itself is missing).
struct FoundState {
  std::filesystem::path folder;
  std::string passed_over; ///< what was damaged and why; empty: nothing
};

/// `dir` may also be one iter_ folder itself. None if nothing was ever saved there; CheckpointError
/// that names them if every checkpoint is damaged.
std::optional<FoundState> newest_train_state(const std::filesystem::path& dir);

/// Throws CheckpointError unless every file of the folder is there with the size and the checksum
/// that were written.
void check_train_state(const std::filesystem::path& folder);

/// Fills parameters and optimizer bit for bit. Throws CheckpointError if a tensor is missing, left
/// over or of another shape or type.
TrainState load_train_state(const std::filesystem::path& folder, nn::ParamList& params,
                            optim::Optimizer& optimizer);

/// The parameters alone, for generation and evaluation.
void load_params(const std::filesystem::path& folder, nn::ParamList& params);

/// The configuration that the folder was written with, as YAML.
std::string saved_config(const std::filesystem::path& folder);

} // namespace pentatron::checkpoint
