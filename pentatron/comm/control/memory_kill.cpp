#include "pentatron/comm/control/memory_kill.h"

#include <csignal>
#include <sys/wait.h>

#include <fmt/format.h>

namespace pentatron::comm::control {

std::string memory_kill_text(std::optional<int64_t> before, std::optional<int64_t> now) {
  const bool known = before && now;
  if (known && *now <= *before) return "";
  return fmt::format("\n  the kernel {} killed it because memory ran out{}\n"
                     "  try: for training, what is not set yet of train.recompute=full and "
                     "offload.optimizer=true with offload.dir=FOLDER on a disk; else fewer ranks "
                     "on this machine, or a higher memory limit of the container or job",
                     known ? "likely" : "may have",
                     known ? ": its out-of-memory killer has ended a process since the run began"
                           : "");
}

std::string MemoryKills::text(std::optional<int> wait_status, bool on_this_machine) const {
  if (wait_status && (!WIFSIGNALED(*wait_status) || WTERMSIG(*wait_status) != SIGKILL)) return "";
  const std::optional<int64_t> now = count_memory_kills();
  if (!wait_status && (!on_this_machine || !before_ || !now)) return "";
  if (!on_this_machine) return memory_kill_text(std::nullopt, std::nullopt);
  return memory_kill_text(before_, now);
}

} // namespace pentatron::comm::control
