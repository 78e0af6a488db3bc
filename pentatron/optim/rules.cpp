#include "pentatron/optim/rules.h"

#include <ATen/ATen.h>

#include "pentatron/base/error.h"
#include "pentatron/optim/elementwise.h"

namespace pentatron::optim {

namespace {

struct RuleEntry {
  OptimizerKind kind;
  std::unique_ptr<Rule> (*make)(const OptimizerConfig&);
};

constexpr RuleEntry kRules[] = {{OptimizerKind::kAdam, make_adamw},
                                {OptimizerKind::kSgd, make_sgd},
                                {OptimizerKind::kLion, make_lion}};

} // namespace

std::unique_ptr<Rule> make_rule(const OptimizerConfig& config, std::string_view name) {
  if (name.empty()) name = config::to_string(config.optimizer);
  for (const RuleEntry& entry : kRules)
    if (config::to_string(entry.kind) == name) return entry.make(config);
  raise<Error>("internal error: there is no update rule {}", name);
}

void plan_rules(nn::ParamList& params, const OptimizerConfig& config) {
  const std::unique_ptr<Rule> rule = make_rule(config);
  for (nn::Param& param : params) {
    param.rule = config::to_string(config.optimizer);
    param.whole = rule->needs_whole();
  }
}

double state_bytes(const OptimizerConfig& config, at::ScalarType dtype) {
  const at::ScalarType acc = nn::acc_dtype(dtype);
  double bytes = acc == dtype ? 0 : static_cast<double>(c10::elementSize(acc));
  for (const RuleState& state : make_rule(config)->state(acc))
    bytes += static_cast<double>(c10::elementSize(state.dtype));
  return bytes;
}

void* at_element(const at::Tensor& flat, int64_t index) {
  return static_cast<char*>(flat.data_ptr()) + index * static_cast<int64_t>(flat.element_size());
}

} // namespace pentatron::optim
