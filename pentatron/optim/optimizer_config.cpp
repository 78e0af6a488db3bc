#include "pentatron/optim/optimizer_config.h"

#include <fmt/format.h>

#include "pentatron/optim/param_group.h"

namespace pentatron::optim {

namespace {

bool is_scaled(StateDtype dtype) {
  return dtype == StateDtype::kFp16 || dtype == StateDtype::kFp8;
}

} // namespace

void OptimizerConfig::check_scaled(config::Violations& violations, std::string_view path) const {
  if (optimizer != OptimizerKind::kAdafactor || !is_scaled(exp_avg_dtype)) return;
  const std::string key = config::join(path, "exp_avg_dtype");
  violations.add(
      key,
      fmt::format("{}={} is not supported with {}=adafactor, whose running mean has no upper bound",
                  key, config::to_string(exp_avg_dtype), config::join(path, "optimizer")),
      fmt::format("{}=bf16", key));
}

void OptimizerConfig::check_clip(config::Violations& violations, std::string_view path) const {
  if (qk_clip) return;
  const OptimizerConfig usual;
  const auto idle = [&](const char* key, double value, double standard) {
    if (value == standard) return;
    violations.add(config::join(path, key),
                   fmt::format("{}={} has no effect without {}=true", config::join(path, key),
                               value, config::join(path, "qk_clip")),
                   fmt::format("{}={}", config::join(path, key), standard));
  };
  idle("qk_clip_threshold", qk_clip_threshold, usual.qk_clip_threshold);
  idle("qk_clip_alpha", qk_clip_alpha, usual.qk_clip_alpha);
}

void OptimizerConfig::validate(config::Violations& violations, std::string_view path) const {
  if (sgd_nesterov && sgd_momentum == 0) {
    const std::string key = config::join(path, "sgd_nesterov");
    violations.add(
        key,
        fmt::format("{}=true has no effect with {}=0", key, config::join(path, "sgd_momentum")),
        fmt::format("{}=0.9", config::join(path, "sgd_momentum")));
  }
  check_scaled(violations, path);
  check_clip(violations, path);
  if (optimizer == OptimizerKind::kAdaptiveMuon && muon_tp_mode == MuonTensorMode::kBlockwise) {
    const std::string key = config::join(path, "muon_tp_mode");
    violations.add(key,
                   fmt::format("{}=blockwise is not supported with {}=adaptive_muon, which "
                               "computes second moments of whole matrices",
                               key, config::join(path, "optimizer")),
                   fmt::format("{}=exact", key));
  }
  check_param_groups(param_groups, config::join(path, "param_groups"), violations);
}

} // namespace pentatron::optim
