/// What one rank communicated, and when: the communication of a trace.
///
/// A group that recorded() has wrapped writes its operations, and those of groups split from it,
/// into a Recorder while that is switched on. Other groups know nothing of it.
#pragma once

#include "pentatron/comm/group.h"

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace pentatron::comm {

/// Times are those of monotonic_s().
struct RecordedOperation {
  std::string group;
  std::string call;  ///< "all_reduce", "send to 3"; peers are ranks of the group
  int64_t bytes = 0; ///< of the tensors this rank reads; of a receive, those it writes
  /// That go to other ranks if each is sent straight what it needs; a sum over ranks as a
  /// reduce-scatter and an all-gather.
  int64_t sent_bytes = 0;
  double start_s = 0;
  double wait_s = 0; ///< when the rank began to wait for it; end_s if it never did
  double end_s = 0;  ///< when the rank saw that it was done, or dropped the Work
};

class Recorder {
 public:
  void enable(bool on);
  bool enabled() const;
  void add(RecordedOperation operation);
  /// Removes and returns the operations added since the last call, in order of start.
  std::vector<RecordedOperation> take();

 private:
  mutable std::mutex mutex_;
  bool enabled_ = false;
  std::vector<RecordedOperation> operations_;
};

/// Returns the group with its communication recorded. Returns a group of one without a backend
/// unchanged.
Group recorded(const Group& group, std::shared_ptr<Recorder> recorder);

} // namespace pentatron::comm
