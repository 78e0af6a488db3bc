/// Starts this program N times as the ranks of a run, monitors the ranks, and returns one exit
/// code.
///
/// The monitor (control/server.h) runs in this process, and ranks find it through two variables of
/// their environment. When the run fails, every rank ends within seconds or is killed. SIGINT,
/// SIGTERM, SIGHUP, SIGUSR1 and SIGUSR2 are forwarded to every rank; a SIGINT or SIGTERM
/// after kOneRequestMs ends the run immediately. SIGTSTP (Ctrl-Z) stops all ranks with this
/// process, and they continue with it. Ranks end when this process dies. Their output is passed on
/// unchanged; their standard input is empty.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "pentatron/comm/control/connection.h"
#include "pentatron/comm/dist_config.h"
#include "pentatron/comm/launch.h"

namespace pentatron::comm {

/// Launchers and `timeout` send a signal to a process and to its group: what comes so soon after a
/// first signal is the same request to end.
inline constexpr int64_t kOneRequestMs = 500;

struct SupervisorOptions {
  enum class Start : uint8_t {
    kMpirun,   ///< through Open MPI's mpirun, on this machine
    kProcesses ///< directly, with the variables of torchrun: for backends that need no launcher
  };

  int ranks = 1;
  std::vector<std::string> arguments; ///< of each rank, without the program's name
  std::string program;                ///< empty: this program
  Start start = Start::kMpirun;
  DistConfig dist;
  /// Written to standard error when the first signal comes that asks the run to end, from a signal
  /// handler; null: nothing.
  const char* acknowledgement = nullptr;
  double join_timeout_s = 300; ///< from the first rank that joins to the last
  double grace_s = 3;          ///< for ranks to end before they are killed
};

/// Returns the exit code of the ranks after all have ended. Throws CommError with the error of the
/// monitor if the run failed, ConfigError if the ranks cannot be started.
int supervise(const SupervisorOptions& options);

/// The address of the supervisor of this rank, if it has one. Throws ConfigError if the variables
/// are invalid.
std::optional<control::Address> supervisor_address(const Environment& environment);

} // namespace pentatron::comm
