/// What may end a run between two steps.
#pragma once

#include "pentatron/comm/group.h"

namespace pentatron::trainer {

/// What a rank has to say between two steps, and whether any rank says so.
struct Between {
  bool signal = false, out_of_time = false, saving = false;
};
/// Collective.
Between any_rank(const Between& here, const comm::Group& world);

/// Whether SIGINT, SIGTERM or SIGHUP came since install_signal_handlers() (train.h).
bool signal_came();

} // namespace pentatron::trainer
