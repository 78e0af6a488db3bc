/// Times a function, and detects whether other programs used its processors in the meantime.
#pragma once

#include <functional>
#include <memory>

namespace pentatron {

struct TimedRun {
  double seconds = 0;
  double busy_s = 0; ///< processor time of all threads of this process
  /// A thread of this process lost its processor before it was done, or was woken and waited for
  /// one.
  bool disturbed = false;
};

/// Keeps a file open for each thread of this process.
class RunTimer {
 public:
  RunTimer();
  ~RunTimer();
  RunTimer(const RunTimer&) = delete;
  RunTimer& operator=(const RunTimer&) = delete;

  TimedRun operator()(const std::function<void()>& run);

 private:
  class Waits;
  std::unique_ptr<Waits> waits_;
};

} // namespace pentatron
