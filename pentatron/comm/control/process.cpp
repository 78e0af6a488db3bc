#include "pentatron/comm/control/process.h"

#include <fstream>
#include <string>

#include <fmt/format.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace pentatron::comm::control {

// System calls: C libraries before glibc 2.36 have no functions for them.
Descriptor open_process(int64_t pid) {
  return Descriptor(static_cast<int>(::syscall(SYS_pidfd_open, static_cast<pid_t>(pid), 0)));
}

void signal_process(const Descriptor& process, int number) {
  ::syscall(SYS_pidfd_send_signal, process.get(), number, nullptr, 0);
}

bool is_stopped(int64_t pid) {
  std::string line;
  std::getline(std::ifstream(fmt::format("/proc/{}/stat", pid)), line);
  const size_t name_end = line.rfind(')');
  if (name_end == std::string::npos || name_end + 2 >= line.size()) return false;
  return line[name_end + 2] == 'T';
}

} // namespace pentatron::comm::control
