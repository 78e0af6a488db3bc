/// Estimates the memory of a run from its configuration: logged before the first step, and an error
/// if this machine does not have enough.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "pentatron/trainer/config.h"
#include "pentatron/trainer/memory_changes.h"

namespace pentatron::trainer {

/// Bytes that one rank holds at the same time, as doubles: a configuration can ask for more than 64
/// bits count.
struct RankMemory {
  double weights = 0;     ///< with the copies that ZeRO-3 gathers
  double gradients = 0;   ///< with what is being reduced
  double optimizer = 0;   ///< moments, and the fp32 weights of a bf16 model; `window` is in it
  double window = 0;      ///< parts of what left by offload.optimizer, during an update
  double activations = 0; ///< kept for backward, plus temporaries of one layer's backward
  double loss = 0;        ///< a chunk of logits and its gradient
  double data = 0;        ///< batches that are prepared
  double update = 0;      ///< temporaries of an update
  double saving = 0;      ///< copies of checkpoint.async_save
  double disk = 0;        ///< what left by offload.optimizer; no memory

  /// Beside what stays. There are no activations during an update.
  double of_backward() const { return activations + loss; }
  double of_update() const { return window + update; }
  bool most_in_update() const { return of_update() > of_backward(); }
  double total() const {
    return weights + gradients + optimizer - window + std::max(of_backward(), of_update()) + data +
           saving;
  }
};

/// The ranks that share this machine's memory.
struct LocalRanks {
  int ranks = 1;
  int processes = 1;
};

/// LibTorch, its threads and tables, of each process: a round number.
inline constexpr double kProcessBytes = 300e6;

struct MemoryPlan {
  double parameters = 0;                 ///< of the model, without padding
  double frozen_parameters = 0;          ///< of these, by train.freeze
  double rank_parameters = 0;            ///< of the rank that holds most
  RankMemory rank;                       ///< of the rank that needs most
  std::vector<RankMemory> pipeline = {}; ///< of a rank of each pipeline rank
  double recomputed = 0; ///< FLOPs of a microbatch that one rank computes again, at most
  double machine = 0;    ///< of all ranks and processes of this machine
  double disk = 0;       ///< of all its ranks, in offload.dir
  double checkpoint = 0; ///< bytes of one in checkpoint.save, with its files for export_hf
};
/// Source: nn/cost.h for what backward keeps, parallel/ddp for what is split.
MemoryPlan plan_memory(const Config& config, int world_size, const LocalRanks& here = {});

/// Several lines: parameters, memory by category, free memory, tokens, steps.
std::string describe_limits(const Config& config, const MemoryPlan& plan,
                            std::optional<int64_t> free_bytes);

/// Settings with which the run fits clearly into `free_bytes`: the nearest values, as `key=value`
/// one after the other; words where none would. First what leaves the training as it is (smaller
/// microbatches, recomputation, ZeRO, offload to `folder`, each alone and together), then leaner
/// optimizers, then smaller models. `folder` is by default that of offload_folder().
std::string memory_remedy(Config config, int world_size, const LocalRanks& here, int64_t free_bytes,
                          std::optional<OffloadFolder> folder = {});

/// Throws ConfigError if the plan is more than `free_bytes` by more than estimates are wrong, and
/// warns if it may be more, with the nearest values that would fit.
void require_memory(const Config& config, int world_size, const LocalRanks& here,
                    int64_t free_bytes);

} // namespace pentatron::trainer
