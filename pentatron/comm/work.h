/// A communication in progress. A cheap value; a default-constructed Work is complete.
///
/// Between start and wait() the caller must neither write the inputs nor read or write the outputs.
/// A Work that is dropped without wait() still takes place.
#pragma once

#include <memory>
#include <utility>

namespace pentatron::comm {

class DeviceOperation;

class Work {
 public:
  /// What a backend implements.
  class Pending {
   public:
    virtual ~Pending() = default;
    virtual void wait() = 0;
    virtual bool done() const = 0;
    /// Of an operation in a GPU's queue, whose wait() makes a stream wait and not the caller.
    virtual std::shared_ptr<DeviceOperation> on_device() const { return nullptr; }
  };

  Work() = default;
  explicit Work(std::shared_ptr<Pending> pending) : pending_(std::move(pending)) {}

  /// Blocks until the outputs are there. Throws CommError if a peer failed or disagrees.
  void wait() {
    if (pending_) pending_->wait();
  }
  /// Whether wait() would return at once.
  bool done() const { return !pending_ || pending_->done(); }
  std::shared_ptr<DeviceOperation> on_device() const {
    return pending_ ? pending_->on_device() : nullptr;
  }

 private:
  std::shared_ptr<Pending> pending_;
};

} // namespace pentatron::comm
