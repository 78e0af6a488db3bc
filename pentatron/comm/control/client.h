/// A rank's end of the control channel: one small thread that reports what an OperationLog holds
/// and ends the process when the monitor requests it, even if the program's threads are stuck.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "pentatron/comm/control/connection.h"
#include "pentatron/comm/control/operation_log.h"
#include "pentatron/comm/failure.h"

namespace pentatron::comm::control {

struct ClientOptions {
  Address address;
  int rank = 0;
  int world_size = 1;
  double heartbeat_s = 1;
  double timeout_s = 600;
  double join_timeout_s = 60;
  /// Called on the client's thread when the run ends early: the monitor ended it, or the monitor is
  /// gone (`monitor_lost`). The default ends the process with `exit_code`; it prints nothing,
  /// except on the first surviving rank when the monitor is gone. With the default, a SIGTERM that
  /// the program does not handle is reported to the monitor before it ends the process.
  std::function<void(int exit_code, const std::string& sentence, bool monitor_lost)> on_stop = {};
};

class Client {
 public:
  /// Joins the run. Throws CommError if the monitor does not answer, or does not know the secret.
  Client(ClientOptions options, std::shared_ptr<OperationLog> log);
  /// Leaves as finish() does, unless fail() came before.
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  /// This rank has returned and joins nothing more.
  void finish();
  /// Reports to the monitor why this rank has failed. The monitor ends the run and prints the
  /// sentence. Returns if the monitor has not ended this process within a few seconds.
  /// Of communication, the error may be the consequence of another rank's.
  void fail(const Failure& failure);

 private:
  class Loop;
  std::unique_ptr<Loop> loop_;
};

} // namespace pentatron::comm::control
