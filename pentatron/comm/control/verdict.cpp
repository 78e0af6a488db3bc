#include "pentatron/comm/control/verdict.h"

#include <cstring>
#include <sys/wait.h>

#include <fmt/format.h>

namespace pentatron::comm::control {

std::string describe_exit(int wait_status) {
  if (WIFSIGNALED(wait_status)) {
    const int number = WTERMSIG(wait_status);
    const char* name = ::sigabbrev_np(number);
    return fmt::format("was killed by signal {}{}", number,
                       name ? fmt::format(" (SIG{})", name) : "");
  }
  return fmt::format("ended too early with exit code {}", WEXITSTATUS(wait_status));
}

} // namespace pentatron::comm::control
