/// Checkpoints and exports of a run that could not be written.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "pentatron/trainer/config.h"

namespace pentatron::trainer {

struct FailedSave {
  std::string what; ///< "checkpoint" or "export"
  int64_t iteration = 0;
  std::string text;   ///< "the checkpoint of iteration 3 was not saved: ..."
  std::string remedy; ///< of the cause; empty: none is known
};

/// Each failure is told once: in the log while the run goes on, or as the error that it ends with.
class FailedSaves {
 public:
  /// `tells`: this rank writes the log.
  FailedSaves(OnSaveError on_error, bool tells) : on_error_(on_error), tells_(tells) {}
  FailedSaves(const FailedSaves&) = delete;
  FailedSaves& operator=(const FailedSaves&) = delete;
  /// Logs what has not been told: another error ends the run.
  ~FailedSaves();

  /// The `what` of `iteration` ("checkpoint", "export") was not saved. Throws CheckpointError with
  /// checkpoint.on_error=stop.
  void add(int64_t iteration, const std::string& what, const std::string& why);
  /// The save of `iteration` is the last: no run could continue without it.
  void run_ends(int64_t iteration) { end_ = iteration; }
  /// A later checkpoint is durable.
  void forget() { last_.clear(); }
  /// Logs the failures that have not been told.
  void tell();
  /// At the end of the run: returns the failure since the last durable checkpoint that the run ends
  /// with, the last of a checkpoint rather than of an export, and logs the others.
  std::optional<FailedSave> finish();

 private:
  OnSaveError on_error_;
  bool tells_;
  int64_t end_ = -1;
  std::vector<FailedSave> untold_;
  std::map<std::string, FailedSave> last_; ///< by kind
};

} // namespace pentatron::trainer
