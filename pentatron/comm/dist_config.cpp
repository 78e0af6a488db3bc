#include "pentatron/comm/dist_config.h"

#include <fmt/format.h>

namespace pentatron::comm {

void DistConfig::validate(config::Violations& violations, std::string_view path) const {
  if (heartbeat_s * 2 > timeout_s) {
    const std::string timeout = config::join(path, "timeout_s");
    const std::string heartbeat = config::join(path, "heartbeat_s");
    violations.add(timeout,
                   fmt::format("{}={} is shorter than two heartbeats of {}={}", timeout, timeout_s,
                               heartbeat, heartbeat_s),
                   fmt::format("{}={}", timeout, heartbeat_s * 5));
  }
}

} // namespace pentatron::comm
