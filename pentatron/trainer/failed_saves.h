/// Checkpoints and exports of a run that could not be written.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "pentatron/trainer/config.h"

namespace pentatron::trainer {

/// Each failure is told once: in the log while the run goes on, or as the error that it ends with.
class FailedSaves {
 public:
  /// `tells`: this rank writes the log.
  FailedSaves(OnSaveError on_error, bool tells) : on_error_(on_error), tells_(tells) {}

  /// The `what` of `iteration` ("checkpoint", "export") was not saved. Throws CheckpointError with
  /// checkpoint.on_error=stop.
  void add(int64_t iteration, const std::string& what, const std::string& why);
  /// A later checkpoint is durable.
  void forget() { last_.clear(); }
  /// Logs the failures that have not been told.
  void tell();
  /// At the end of the run: logs the others, and returns the last failure of each kind since the
  /// last durable checkpoint.
  std::map<std::string, std::string> finish();

 private:
  OnSaveError on_error_;
  bool tells_;
  std::vector<std::string> untold_;
  std::map<std::string, std::string> last_; ///< by kind
};

} // namespace pentatron::trainer
