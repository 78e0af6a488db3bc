/// A backend whose operations are written into an OperationLog: when each begins, whether its rank
/// waits for it, and when it has ended. Groups split from it are monitored too.
#pragma once

#include <memory>

#include "pentatron/comm/backend.h"
#include "pentatron/comm/control/operation_log.h"

namespace pentatron::comm::control {

std::shared_ptr<Backend> monitored(std::shared_ptr<Backend> backend,
                                   std::shared_ptr<OperationLog> log);

} // namespace pentatron::comm::control
