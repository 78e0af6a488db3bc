#include "pentatron/optim/optimizer_config.h"

#include <cmath>

#include <fmt/format.h>

#include "pentatron/optim/param_group.h"

namespace pentatron::optim {

namespace {

/// Significant bits of a type; fp32 has enough.
int significant_bits(StateDtype dtype) {
  switch (dtype) {
  case StateDtype::kFp32:
    break;
  case StateDtype::kBf16:
    return 8;
  case StateDtype::kFp16:
    return 11;
  case StateDtype::kFp8:
    return 4;
  }
  return 24;
}

bool is_scaled(StateDtype dtype) {
  return dtype == StateDtype::kFp16 || dtype == StateDtype::kFp8;
}

} // namespace

void OptimizerConfig::check_decay(config::Violations& violations, std::string_view path) const {
  // A number that decays by less than half a unit of its last place is rounded to itself.
  const auto check = [&](StateDtype dtype, const char* key, const char* rate, double decay) {
    if (dtype == StateDtype::kFp32 || decay <= 1 - std::ldexp(1, -significant_bits(dtype))) return;
    const char* const wider = dtype == StateDtype::kFp8 && decay <= 1 - 1.0 / 256 ? "bf16" : "fp32";
    violations.add(config::join(path, key),
                   fmt::format("{}={} is too coarse for a running mean with {}={}: rounding keeps "
                               "the mean from decreasing",
                               config::join(path, key), config::to_string(dtype),
                               config::join(path, rate), decay),
                   fmt::format("{}={}", config::join(path, key), wider));
  };
  const bool muon = optimizer == OptimizerKind::kMuon || optimizer == OptimizerKind::kAdaptiveMuon;
  const bool adam = optimizer == OptimizerKind::kAdam || muon;
  if (adam) check(exp_avg_dtype, "exp_avg_dtype", "adam_beta1", adam_beta1);
  if (adam) check(exp_avg_sq_dtype, "exp_avg_sq_dtype", "adam_beta2", adam_beta2);
  if (optimizer == OptimizerKind::kSgd)
    check(exp_avg_dtype, "exp_avg_dtype", "sgd_momentum", sgd_momentum);
  if (optimizer == OptimizerKind::kLion)
    check(exp_avg_dtype, "exp_avg_dtype", "lion_beta2", lion_beta2);
  if (muon) check(exp_avg_dtype, "exp_avg_dtype", "muon_momentum", muon_momentum);
  if (optimizer == OptimizerKind::kAdafactor)
    check(exp_avg_dtype, "exp_avg_dtype", "adafactor_beta1", adafactor_beta1);
}

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
  check_decay(violations, path);
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
