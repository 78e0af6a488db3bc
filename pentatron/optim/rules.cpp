#include "pentatron/optim/rules.h"

#include <ATen/ATen.h>

#include "pentatron/base/error.h"

namespace pentatron::optim {

namespace {

struct RuleEntry {
  OptimizerKind kind;
  std::unique_ptr<Rule> (*make)(const OptimizerConfig&);
};

constexpr RuleEntry kRules[] = {{OptimizerKind::kAdam, make_adamw},
                                {OptimizerKind::kSgd, make_sgd},
                                {OptimizerKind::kLion, make_lion},
                                {OptimizerKind::kMuon, make_muon}};

} // namespace

std::unique_ptr<Rule> make_rule(const OptimizerConfig& config, std::string_view name) {
  for (const RuleEntry& entry : kRules)
    if (config::to_string(entry.kind) == name) return entry.make(config);
  raise<Error>("internal error: there is no update rule {}", name);
}

bool is_matrix(const nn::ShardSpec& spec) {
  return std::ssize(spec.shape) - spec.stacked_dims == 2 && !spec.table;
}

std::string rule_name(const OptimizerConfig& config, const nn::ShardSpec& spec) {
  const bool rest = config.optimizer == OptimizerKind::kMuon && !is_matrix(spec);
  return std::string(config::to_string(rest ? OptimizerKind::kAdam : config.optimizer));
}

void plan_rules(nn::ParamList& params, const OptimizerConfig& config) {
  for (nn::Param& param : params) {
    param.rule = rule_name(config, param.spec());
    param.whole = make_rule(config, param.rule)->needs_whole();
  }
}

bool keeps_remainder(const OptimizerConfig& config, at::ScalarType dtype) {
  return config.store_param_remainders && dtype == at::kBFloat16;
}

at::ScalarType state_dtype(StateDtype dtype, at::ScalarType acc) {
  return dtype == StateDtype::kBf16 ? at::kBFloat16 : acc;
}

double state_bytes(const OptimizerConfig& config, const nn::ShardSpec& spec, at::ScalarType dtype) {
  const at::ScalarType acc = nn::acc_dtype(dtype);
  double bytes = acc == dtype ? 0 : static_cast<double>(c10::elementSize(acc));
  if (keeps_remainder(config, dtype)) bytes = 2;
  for (const RuleState& state : make_rule(config, rule_name(config, spec))->state(acc))
    bytes += static_cast<double>(c10::elementSize(state.dtype));
  return bytes;
}

} // namespace pentatron::optim
