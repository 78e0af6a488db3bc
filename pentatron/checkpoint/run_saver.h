/// Saves the checkpoints of a run: synchronously, or in the background while training continues.
///
/// In the background a save goes through these states; every rank learns of them at the same step:
///   queued   every rank has copied what it writes; training may change it
///   written  every rank's files are durable in a folder aside
///   durable  the folder has its name, and `latest` names it
/// The bytes are those of a save at once.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "pentatron/checkpoint/run_checkpoint.h"

namespace pentatron::checkpoint {

struct SaveOptions {
  std::filesystem::path dir;
  Retention retention;
  bool async = false;
  int64_t parity = 0;                         ///< parity files, see sharded/parity.h
  bool node_local = false;                    ///< `dir` is another folder on each machine
  uint64_t staging_bytes = uint64_t{4} << 30; ///< of a rank, at most; for async
};

struct SaveEvent {
  enum class State : uint8_t { kQueued, kWritten, kDurable, kFailed };
  State state = State::kQueued;
  int64_t iteration = 0;
  double seconds = 0;           ///< since save() was called, of the slowest rank
  double waited_s = 0;          ///< of kQueued: for the save before it, and for room to copy
  uint64_t bytes = 0;           ///< of all ranks
  std::filesystem::path folder; ///< of kDurable
  std::string text;             ///< of kFailed: why; of kDurable: what could not be removed
};

/// Every call but busy() is collective over the world; every rank gets the same events.
class RunSaver {
 public:
  RunSaver(SaveOptions options, comm::Group world);
  /// What is under way and not durable is dropped; the checkpoints before it stay.
  ~RunSaver();

  /// Writes the checkpoint of state.iteration, replacing one of that iteration, and removes old
  /// ones as `retention` says. A failure is an event, not an exception; then the earlier
  /// checkpoints are as they were. Finishes the save before it first.
  std::vector<SaveEvent> save(const TrainState& state, const RunParts& parts);

  /// Whether this rank has something under way. Once no rank has, advance() takes the next step.
  bool busy() const;
  /// Nothing if `any_busy`, which must be the same on all ranks, or nothing is under way.
  std::vector<SaveEvent> advance(bool any_busy);
  /// Waits until nothing is under way.
  std::vector<SaveEvent> finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

} // namespace pentatron::checkpoint
