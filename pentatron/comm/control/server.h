/// The monitor of a run: ranks report to it over TCP, it decides when the run has failed and says
/// why, and then it ends every rank.
///
/// It runs in the process that supervises the ranks, or under a foreign launcher in that of rank 0,
/// on a thread of its own. It ends the run when ranks disagree on an operation, wait longer than
/// timeout_s, wait for one that has finished, report an error, lose their connection or fall
/// silent. Connections without the job secret are dropped; the secret itself never travels.
#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "pentatron/comm/control/connection.h"
#include "pentatron/comm/control/verdict.h"

namespace pentatron::comm::control {

struct ServerOptions {
  int ranks = 1;
  double timeout_s = 600;
  double heartbeat_s = 1;
  double join_timeout_s = 300; ///< from the first rank that joins to the last
  double grace_s = 3;          ///< for ranks to end before they are killed
  bool all_interfaces = false; ///< listen beyond 127.0.0.1: for ranks on several machines
  std::string advertised_host = "127.0.0.1"; ///< what the ranks connect to
  int host_rank = -1;                        ///< the rank of this process; never asked to stop
  bool reports_exits = false;                ///< report_exit() will be called for every rank
  /// Called on the server's thread when it ends the run, before any rank is notified.
  std::function<void(const Verdict&)> on_verdict = {};
  /// Called on the server's thread when the other ranks have ended, or were killed.
  std::function<void(const Verdict&)> on_end = {};
};

class Server {
 public:
  /// Throws CommError if it cannot listen.
  explicit Server(ServerOptions options);
  /// Closes every connection.
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  Address address() const;

  /// The process of a rank has ended with this status of waitpid().
  void report_exit(int rank, int wait_status);
  /// Delivers a signal to every rank's process that has joined.
  void send_signal(int number);
  /// Sends a signal to every such process of this machine itself; returns when that is done.
  void signal_processes(int number);
  /// How many ranks have joined so far.
  int joined() const;
  /// Decides now: the run ends with this verdict unless it has one.
  void end_run(const Verdict& verdict);

  std::optional<Verdict> verdict() const;
  /// Waits until all ranks have finished or the run has ended by a verdict.
  void wait_until_over();
  /// Whether that has happened.
  bool over() const;

 private:
  class Loop;
  std::unique_ptr<Loop> loop_;
};

/// How long a rank may be silent: a few heartbeats if the system reports that its process is
/// stopped, otherwise long enough for a machine that is swapping.
struct SilenceLimits {
  double stopped_s, unknown_s;
};
SilenceLimits silence_limits(double heartbeat_s, double timeout_s);

} // namespace pentatron::comm::control
