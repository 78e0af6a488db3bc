#include "pentatron/optim/optimizer_config.h"

#include <fmt/format.h>

#include "pentatron/optim/param_group.h"

namespace pentatron::optim {

namespace {

/// bf16 rounds a number that decays by less than half a unit of its last place to itself.
constexpr double kSlowestDecay = 1 - 1.0 / 256;

} // namespace

void OptimizerConfig::check_decay(config::Violations& violations, std::string_view path) const {
  const auto check = [&](StateDtype dtype, const char* key, const char* rate, double decay) {
    if (dtype != StateDtype::kBf16 || decay <= kSlowestDecay) return;
    violations.add(config::join(path, key),
                   fmt::format("{}=bf16 rounds a running mean that decays by {}={} to itself, so "
                               "that it never falls",
                               config::join(path, key), config::join(path, rate), decay),
                   fmt::format("{}=fp32", config::join(path, key)));
  };
  const bool adam = optimizer == OptimizerKind::kAdam || optimizer == OptimizerKind::kMuon;
  if (adam) check(exp_avg_dtype, "exp_avg_dtype", "adam_beta1", adam_beta1);
  if (adam) check(exp_avg_sq_dtype, "exp_avg_sq_dtype", "adam_beta2", adam_beta2);
  if (optimizer == OptimizerKind::kSgd)
    check(exp_avg_dtype, "exp_avg_dtype", "sgd_momentum", sgd_momentum);
  if (optimizer == OptimizerKind::kLion)
    check(exp_avg_dtype, "exp_avg_dtype", "lion_beta2", lion_beta2);
  if (optimizer == OptimizerKind::kMuon)
    check(exp_avg_dtype, "exp_avg_dtype", "muon_momentum", muon_momentum);
}

void OptimizerConfig::validate(config::Violations& violations, std::string_view path) const {
  if (sgd_nesterov && sgd_momentum == 0) {
    const std::string key = config::join(path, "sgd_nesterov");
    violations.add(
        key,
        fmt::format("{}=true has no effect with {}=0", key, config::join(path, "sgd_momentum")),
        fmt::format("{}=0.9", config::join(path, "sgd_momentum")));
  }
  check_decay(violations, path);
  check_param_groups(param_groups, config::join(path, "param_groups"), violations);
}

} // namespace pentatron::optim
