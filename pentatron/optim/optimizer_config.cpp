#include "pentatron/optim/optimizer_config.h"

#include <fmt/format.h>

namespace pentatron::optim {

void OptimizerConfig::validate(config::Violations& violations, std::string_view path) const {
  if (sgd_nesterov && sgd_momentum == 0) {
    const std::string key = config::join(path, "sgd_nesterov");
    violations.add(
        key,
        fmt::format("{}=true has no effect with {}=0", key, config::join(path, "sgd_momentum")),
        fmt::format("{}=0.9", config::join(path, "sgd_momentum")));
  }
}

} // namespace pentatron::optim
