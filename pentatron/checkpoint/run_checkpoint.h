/// Saving and resuming a run in any layout: every rank writes the elements that it alone owns, and
/// reads those that it needs, whatever ranks wrote them.
///
///   DIR/step_00000100/   see container/checkpoint_writer.h
///     model_00000_of_00008.safetensors      parameters, by name, in the model's type
///     optimizer_00000_of_00008.safetensors  optimizer state, as "<parameter>/<what>"
///     manifest.json
///   DIR/latest
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "pentatron/checkpoint/container/folders.h"
#include "pentatron/optim/optimizer.h"
#include "pentatron/parallel/data/data_parallel.h"

namespace pentatron::checkpoint {

struct TrainState {
  int64_t iteration = 0;
  int64_t consumed_samples = 0;
  int64_t skipped_iterations = 0;
  int64_t nan_iterations = 0;
  std::string config_yaml;
};

/// What a rank holds of a run.
struct RunParts {
  parallel::DataParallel& store;
  optim::Optimizer& optimizer;
  comm::Group world;
};

/// Writes the checkpoint of state.iteration, replacing one of that iteration, and removes old ones.
/// Collective over the world. Returns the folder. Throws CheckpointError; then the earlier
/// checkpoints are as they were.
std::filesystem::path save_run(const std::filesystem::path& dir, const TrainState& state,
                               const RunParts& parts, const Retention& retention);

/// The newest good checkpoint, found by rank 0 and told to all: see newest_checkpoint().
/// Collective.
std::optional<FoundCheckpoint> find_run(const std::filesystem::path& dir, const comm::Group& world);

/// Fills parameters and optimizer. Collective over the world. Throws CheckpointError if a tensor is
/// missing, left over, damaged, or of another shape or type.
TrainState load_run(const std::filesystem::path& folder, const RunParts& parts);

/// The parameters alone, whole ones of one rank, for generation and evaluation. State of an
/// optimizer is passed over.
void load_params(const std::filesystem::path& folder, nn::ParamList& params);

/// The configuration that the folder was written with, as YAML.
std::string saved_config(const std::filesystem::path& folder);

} // namespace pentatron::checkpoint
