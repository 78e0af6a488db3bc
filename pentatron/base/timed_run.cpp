#include "pentatron/base/timed_run.h"

#include <algorithm>
#include <ctime>

#include <sys/resource.h>

namespace pentatron {

namespace {

double read_s(clockid_t clock) {
  timespec time = {};
  ::clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

/// How often the kernel has taken a processor from a thread that had not finished.
long preemptions() {
  rusage usage = {};
  ::getrusage(RUSAGE_SELF, &usage);
  return usage.ru_nivcsw;
}

} // namespace

TimedRun time_run(const std::function<void()>& run) {
  const long before = preemptions();
  const double busy = read_s(CLOCK_PROCESS_CPUTIME_ID), begin = read_s(CLOCK_MONOTONIC);
  run();
  TimedRun timed;
  timed.seconds = std::max(read_s(CLOCK_MONOTONIC) - begin, 1e-9);
  timed.busy_s = read_s(CLOCK_PROCESS_CPUTIME_ID) - busy;
  timed.disturbed = preemptions() != before;
  return timed;
}

} // namespace pentatron
