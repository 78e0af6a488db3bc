/// A backend whose operations are written into an OperationLog: when each begins, whether its rank
/// waits for it, and when it has ended. Groups split from it are monitored too.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "pentatron/comm/backend.h"
#include "pentatron/comm/control/operation_log.h"

namespace pentatron::comm::control {

std::shared_ptr<Backend> monitored(std::shared_ptr<Backend> backend,
                                   std::shared_ptr<OperationLog> log);

/// While it exists, `log` has an operation of group `name` that every rank must join, such as one
/// that makes a backend: a rank that does not come is told of.
class MonitoredCall {
 public:
  MonitoredCall(OperationLog& log, const std::string& name, const std::vector<int>& ranks,
                const char* call);
  /// An error: the log keeps the operation as not ended.
  ~MonitoredCall();
  MonitoredCall(const MonitoredCall&) = delete;
  MonitoredCall& operator=(const MonitoredCall&) = delete;

 private:
  OperationLog& log_;
  OperationLog::Token token_;
  int exceptions_;
};

} // namespace pentatron::comm::control
