/// Work of one rank for which others may have to wait longer than dist.timeout_s: reading or
/// writing a checkpoint, for example. As long as it makes progress the monitor does not take the
/// wait of the others for a fault.
///
///   const LongWork work(world, "reading step_00000100");
///   for (...) { read a block; work.progress(); }
///   barrier(world);  // whoever is done earlier may wait here for hours
#pragma once

#include <memory>
#include <string>

#include "pentatron/comm/group.h"

namespace pentatron::comm {

/// Receives a rank's reports of long work. Functions may be called by any thread.
class Activity {
 public:
  virtual ~Activity() = default;
  virtual void begin(const std::string& what) = 0;
  /// Something was done. Without effect while no long work is under way: what a background thread
  /// does must not hide that the rank itself is stuck.
  virtual void progress() = 0;
  virtual void end() = 0;
};

/// Lasts as long as the object. The thread that communicates makes it; any thread may tell of
/// progress. A rank may have several at once.
class LongWork {
 public:
  /// `what` follows "rank 3 works on" in a message: "reading step_00000100".
  LongWork(const Group& group, const std::string& what);
  ~LongWork();
  LongWork(const LongWork&) = delete;
  LongWork& operator=(const LongWork&) = delete;

  /// To be called at least every few seconds.
  void progress() const;

 private:
  std::shared_ptr<Activity> activity_;
};

/// Tells of progress in the long work that the rank may be in, for threads that serve it.
class ProgressTeller {
 public:
  explicit ProgressTeller(const Group& group);
  void operator()() const;

 private:
  std::shared_ptr<Activity> activity_;
};

} // namespace pentatron::comm
