/// Going on with a run in any layout, or starting from the weights of one: every rank reads the
/// elements that it needs, whatever ranks wrote them. run_saver.h writes such folders:
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
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "pentatron/base/error.h"
#include "pentatron/checkpoint/sharded/folders.h"
#include "pentatron/checkpoint/strictness.h"
#include "pentatron/optim/optimizer.h"
#include "pentatron/parallel/ddp/data_parallel.h"

namespace pentatron::checkpoint {

struct TrainState {
  int64_t iteration = 0;
  int64_t consumed_samples = 0;
  int64_t skipped_iterations = 0;
  int64_t nan_iterations = 0;
  /// Of this iteration, where they are known; retention looks at them.
  std::optional<double> loss, validation_loss;
  std::string config_yaml;
  std::string tokenizer; ///< digest
  int64_t eod = -1;      ///< the token that ends a document; -1: none
  /// Small files to lie beside the tensors, by name.
  std::map<std::string, std::string> attachments;
};

/// What a rank holds of a run.
struct RunParts {
  parallel::DataParallel& store;
  optim::Optimizer& optimizer;
  comm::Group world;
};

/// The newest checkpoint that rank 0 finds whole by its structure (VerifyScope::kStructure), told
/// to all: see newest_checkpoint(). Whether its content is as written is found by the ranks that
/// read it. Throws CheckpointError, the same on all ranks, if all is damaged. If `dir` is another
/// folder on each machine, see find_on_machines(). Collective.
std::optional<FoundCheckpoint> find_run(const std::filesystem::path& dir, const comm::Group& world,
                                        bool node_local = false, const KnownDamage& damaged = {});

/// The checkpoint is not as written: what one rank has found, thrown by all. Parameters and
/// optimizer hold anything, see forget_state().
class DamagedCheckpoint : public CheckpointError {
 public:
  using CheckpointError::CheckpointError;
};

struct LoadOptions {
  bool optimizer = true; ///< false: weights alone, in whatever type they are
  Strictness strictness = Strictness::kRaiseAll;
  bool node_local = false; ///< the folder is another one on each machine
};

struct LoadedRun {
  TrainState state;              ///< of step 0 if the checkpoint holds weights alone
  std::vector<std::string> told; ///< a sentence for everything that strictness let pass
};

/// Fills parameters and optimizer. Each rank reads what it needs and checks it meanwhile; ranks
/// that hold the same read a part each and exchange the parts. Collective over the world. Throws,
/// the same on all ranks, DamagedCheckpoint; CheckpointError with one line for every tensor that is
/// missing, left over, of another shape, or (with the optimizer) of another type.
LoadedRun load_run(const std::filesystem::path& folder, const RunParts& parts,
                   const LoadOptions& options = {});

/// Makes the optimizer what it was before anything was loaded; parameters are the caller's.
void forget_state(optim::Optimizer& optimizer);

struct SavedRun {
  std::string config_yaml;        ///< empty: written by another program than the trainer
  bool has_training_state = true; ///< false: weights alone
};
/// What the folder was written with.
SavedRun saved_run(const std::filesystem::path& folder);

} // namespace pentatron::checkpoint
