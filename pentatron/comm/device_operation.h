/// Operations that run on a GPU, as the control thread sees them: the host continues after it has
/// queued an operation, so only the GPU knows when the operation begins and ends.
#pragma once

#include <string>

namespace pentatron::comm {

/// An operation in a GPU's queue. Holds no tensors: the control thread keeps it until it looks.
class DeviceOperation {
 public:
  enum class Progress : unsigned char {
    kQueued,  ///< what stands before it in its stream has not ended
    kRunning, ///< on this rank; the other ranks' may not have begun
    kDone,
  };

  virtual ~DeviceOperation() = default;
  /// Called by any thread; returns at once. An operation that the GPU's own error has ended is
  /// never done; DeviceGroup::error() has the reason.
  virtual Progress progress() noexcept = 0;
};

/// What carries the operations of one group.
class DeviceGroup {
 public:
  virtual ~DeviceGroup() = default;
  /// Why it can carry nothing any more; empty if all is well. Called by any thread; returns at
  /// once.
  virtual std::string error() = 0;
  /// Aborts the operation regardless of the other ranks and wakes threads that wait for it. Can be
  /// called by any thread and more than once.
  virtual void abort() = 0;
};

} // namespace pentatron::comm
