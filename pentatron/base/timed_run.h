/// Times a function, and detects whether other programs used its processors in the meantime.
#pragma once

#include <functional>

namespace pentatron {

struct TimedRun {
  double seconds = 0;
  double busy_s = 0;      ///< processor time of all threads of this process
  bool disturbed = false; ///< a thread of this process lost its processor before it was done
};

TimedRun time_run(const std::function<void()>& run);

} // namespace pentatron
