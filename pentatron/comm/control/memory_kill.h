/// Whether the kernel has killed a process because memory ran out.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "pentatron/base/control_group.h"

namespace pentatron::comm::control {

/// What to add to the sentence about a process that ended by SIGKILL: that the kernel likely killed
/// it, and what to try. `before` and `now` are count_memory_kills() at the start of the run and
/// after the end of the process. Empty if they say that the kernel did not.
std::string memory_kill_text(std::optional<int64_t> before, std::optional<int64_t> now);

/// Compares with the count at its construction.
class MemoryKills {
 public:
  /// Of a rank whose process has ended with this status of waitpid(). Without the status, only a
  /// count that has grown says something. The count is of processes of this machine.
  std::string text(std::optional<int> wait_status, bool on_this_machine) const;

 private:
  std::optional<int64_t> before_ = count_memory_kills();
};

} // namespace pentatron::comm::control
