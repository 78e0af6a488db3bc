/// The monitor of ranks that are threads of this process: reads their operation logs as often as
/// processes would send them.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "pentatron/comm/control/diagnose.h"
#include "pentatron/comm/control/operation_log.h"

namespace pentatron::comm::control {

class ThreadWatch {
 public:
  struct Options {
    double timeout_s = 600;
    double heartbeat_s = 1;
    double grace_s = 3; ///< from a failure to the end of all threads
    /// Called on the watch's thread when ranks wait for too long; it makes them leave.
    std::function<void(const Finding&)> on_finding = {};
    /// Called on the watch's thread when the grace is over and threads still run, with the reason
    /// of the failure.
    std::function<void(const std::string& sentence)> on_stuck = {};
  };

  ThreadWatch(Options options, std::vector<std::shared_ptr<OperationLog>> logs);
  /// All threads have ended.
  ~ThreadWatch();
  ThreadWatch(const ThreadWatch&) = delete;
  ThreadWatch& operator=(const ThreadWatch&) = delete;

  /// The rank's thread has returned.
  void finished(int rank);
  /// A rank has failed; the others should end within the grace.
  void failed(const std::string& sentence);

 private:
  void run();

  const Options options_;
  const std::vector<std::shared_ptr<OperationLog>> logs_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<bool> finished_;
  std::string failure_;
  bool closing_ = false;
  std::thread thread_;
};

} // namespace pentatron::comm::control
