#include "pentatron/parallel/ddp/ddp_config.h"

#include <fmt/format.h>

namespace pentatron::parallel {

void DdpConfig::validate(config::Violations& violations, std::string_view path) const {
  if (num_distributed_optimizer_instances > 1 && zero_stage == 0) {
    const std::string key = config::join(path, "num_distributed_optimizer_instances"),
                      stage = config::join(path, "zero_stage");
    violations.add(key,
                   fmt::format("{}={} has no effect with {}=0, which shards nothing", key,
                               num_distributed_optimizer_instances, stage),
                   fmt::format("{}=1", stage));
  }
}

} // namespace pentatron::parallel
