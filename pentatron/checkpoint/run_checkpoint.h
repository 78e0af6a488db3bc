/// Resumes a run in any layout, or starts from the weights of a run. Every rank reads the elements
/// that it needs, no matter which ranks wrote them. run_saver.h writes these folders:
///
///   DIR/step_00000100/   see sharded/checkpoint_writer.h
///     model_00000_of_00008.safetensors      parameters, by name, in the model's type
///     optimizer_00000_of_00008.safetensors  optimizer state, as "<parameter>/<what>"
///     tokenizer/...                         the tokenizer's own files
///     manifest.json
///   DIR/latest
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "pentatron/base/error.h"
#include "pentatron/checkpoint/sharded/expert_choices.h"
#include "pentatron/checkpoint/sharded/folders.h"
#include "pentatron/checkpoint/strictness.h"
#include "pentatron/models/param_specs.h"
#include "pentatron/optim/loss_scale.h"
#include "pentatron/optim/optimizer.h"
#include "pentatron/parallel/ddp/data_parallel.h"

namespace pentatron::checkpoint {

struct TrainState {
  int64_t iteration = 0;
  int64_t consumed_samples = 0;
  int64_t skipped_iterations = 0;
  int64_t nan_iterations = 0;
  /// Of a dynamic loss scale; none: the run has none.
  std::optional<optim::LossScaleState> loss_scale;
  /// Skipped iterations, and their samples, that the schedules do not count.
  int64_t held_iterations = 0, held_samples = 0;
  /// Of the last step that changed the model, where the next step depends on it.
  ExpertChoices expert_choices;
  /// Of this iteration, where they are known; retention looks at them.
  std::optional<double> loss, validation_loss;
  std::map<std::string, double> figures; ///< of an evaluation, by "validation_" and their names
  std::string config_yaml;
  std::string tokenizer; ///< digest
  int64_t eod = -1;      ///< the token that ends a document; -1: none
  /// Small files to store with the tensors, by name.
  std::map<std::string, std::string> attachments;
};

/// What a rank holds of a run.
struct RunParts {
  parallel::DataParallel& store;
  optim::Optimizer& optimizer;
  comm::Group world;
  bool adapters_only = false; ///< the base of the adapters lies elsewhere
};

/// The latest checkpoint whose structure rank 0 finds intact (VerifyScope::kStructure), the same on
/// all ranks: see newest_checkpoint(). The ranks that read its content check it. Throws
/// CheckpointError on all ranks if all checkpoints are corrupted. See find_on_machines() if `dir`
/// is a local folder of each machine. Collective.
std::optional<FoundCheckpoint> find_run(const std::filesystem::path& dir, const comm::Group& world,
                                        bool node_local = false, const KnownDamage& damaged = {});

/// The checkpoint is corrupted. All ranks throw the error of the rank that found it. The values of
/// parameters and optimizer are undefined, see forget_state().
class DamagedCheckpoint : public CheckpointError {
 public:
  using CheckpointError::CheckpointError;
};

/// `work`, which reads a checkpoint, on every rank. If one finds damage, all throw
/// DamagedCheckpoint with its sentence; if one cannot read at all, all throw CheckpointError. A
/// rank that fails comes to the end at once, the others when they have read. Collective.
void read_together(const comm::Group& world, const std::function<void()>& work);

struct LoadOptions {
  bool optimizer = true; ///< false: weights alone, in whatever type they are
  Strictness strictness = Strictness::kRaiseAll;
  bool node_local = false; ///< the folder is another one on each machine
  /// Whether the run that saved it did not train a parameter: then the checkpoint has no state of
  /// it, and it begins with none. By default it trained all.
  std::function<bool(const std::string& param)> was_frozen = {};
};

struct LoadedRun {
  TrainState state;              ///< of step 0 if the checkpoint holds weights alone
  std::vector<std::string> told; ///< a sentence for everything that strictness let pass
};

/// Loads parameters and optimizer. Each rank reads and checks the data it needs; ranks with the
/// same data read a part each and exchange the parts. Collective over the world. All ranks throw
/// the same error: DamagedCheckpoint, or CheckpointError with one line for every tensor that is
/// missing, unexpected, of another shape, or (with the optimizer) of another type.
LoadedRun load_run(const std::filesystem::path& folder, const RunParts& parts,
                   const LoadOptions& options = {});

/// Resets the optimizer to its state before loading. The caller resets the parameters.
void forget_state(optim::Optimizer& optimizer);

/// Throws the CheckpointError that load_run() throws if the names and shapes of the parameters and
/// buffers in the folder are not these. Reads no tensor.
void check_parameters(const std::filesystem::path& folder, const models::ParamSpecs& specs,
                      Strictness strictness);

struct SavedRun {
  std::string config_yaml;        ///< empty: written by another program than the trainer
  bool has_training_state = true; ///< false: weights alone
  std::string tokenizer;          ///< digest; empty: not known
};
/// The configuration of the run that wrote the folder.
SavedRun saved_run(const std::filesystem::path& folder);

} // namespace pentatron::checkpoint
