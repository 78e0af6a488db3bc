/// What may end a run between two steps.
#pragma once

#include <cstdint>
#include <string>

#include "pentatron/comm/group.h"

namespace pentatron::trainer {

/// What a rank reports between two steps; any_rank() combines it over all ranks.
struct Between {
  int signal = 0; ///< its number; of all ranks the largest
  bool out_of_time = false, saving = false;
  int64_t contended = 0; ///< ContentionNotice::look(); of all ranks the largest
};
/// Collective.
Between any_rank(const Between& here, const comm::Group& world);

/// SIGINT, SIGTERM or SIGHUP, if it came since install_signal_handlers() (train.h); else 0.
int signal_that_came();

/// "finished", "signal SIGINT", "exit_interval" or "exit_duration", as in run.json.
struct TrainReport;
std::string exit_reason(const TrainReport& report);

} // namespace pentatron::trainer
