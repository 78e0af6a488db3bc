/// Whether other work keeps the processors busy: how long this process's threads were ready to run
/// and had to wait.
#pragma once

#include <filesystem>
#include <optional>

#include "pentatron/trainer/metrics/hardware.h"

namespace pentatron::trainer {

/// Since the start of the process, or of the machine; in seconds. What Linux does not tell is 0.
struct CpuTime {
  double running = 0; ///< of all threads of this process
  double waiting = 0; ///< ready, but another thread had the processor
  double stolen = 0;  ///< of all processors: what the host of a virtual machine gave to others
  double total = 0;   ///< of all processors
};

/// Reads proc/self/task/*/schedstat and proc/stat below `root`.
CpuTime read_cpu_time(const std::filesystem::path& root = "/");

/// What happened between two readings, if it cost more than a tenth of the time: other threads on
/// this machine's processors, or other virtual machines on its host. None for less than half a
/// second of work.
/// `threads`: that compute in this process.
std::optional<Finding> find_contention(const CpuTime& before, const CpuTime& after, int threads);

/// Looks at the first steps of a run and then at every minute.
class ContentionWatch {
 public:
  explicit ContentionWatch(std::filesystem::path root = "/") : root_(std::move(root)) {}
  /// After each step, at a monotonic time `now_s`: what the last look has found. The first step,
  /// which sets things up, does not count.
  const std::optional<Finding>& step(double now_s);
  /// Of the last look; none: no contention.
  const std::optional<Finding>& finding() const { return finding_; }

 private:
  std::filesystem::path root_;
  std::optional<CpuTime> begin_;
  double next_s_ = 0; ///< when to look again
  int steps_ = 0;
  std::optional<Finding> finding_;
};

} // namespace pentatron::trainer
