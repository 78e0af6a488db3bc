/// Other processes of this machine.
#pragma once

#include <cstdint>

#include "pentatron/comm/control/connection.h"

namespace pentatron::comm::control {

/// A pidfd, which never means a later process of the same number; invalid if the process does not
/// exist.
Descriptor open_process(int64_t pid);
void signal_process(const Descriptor& process, int number);

/// Whether a process is stopped by a signal.
bool is_stopped(int64_t pid);

} // namespace pentatron::comm::control
