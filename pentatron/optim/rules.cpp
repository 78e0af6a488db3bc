#include "pentatron/optim/rules.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "pentatron/base/error.h"
#include "pentatron/optim/matrix_grid.h"
#include "pentatron/optim/narrow_state.h"

namespace pentatron::optim {

namespace {

struct RuleEntry {
  std::string_view name;
  std::unique_ptr<Rule> (*make)(const OptimizerConfig&);
};

constexpr std::string_view kOfVectors = "adafactor of vectors";

constexpr RuleEntry kRules[] = {
    {config::to_string(OptimizerKind::kAdam), make_adamw},
    {config::to_string(OptimizerKind::kSgd), make_sgd},
    {config::to_string(OptimizerKind::kLion), make_lion},
    {config::to_string(OptimizerKind::kMuon), make_muon},
    {config::to_string(OptimizerKind::kAdaptiveMuon), make_adaptive_muon},
    {config::to_string(OptimizerKind::kAdafactor), make_adafactor},
    {kOfVectors, make_adafactor_of_vectors}};

/// How many numbers of a state a rank keeps for each of its elements.
double share_of(RuleState::Extent extent, const nn::ShardSpec& spec, const nn::Coordinates& where) {
  const auto count = [&](const nn::ShardSpec& of) {
    double n = 1;
    for (const int64_t size : nn::local_shape(of, where)) n *= static_cast<double>(size);
    return n;
  };
  switch (extent) {
  case RuleState::Extent::kElements:
    return 1;
  case RuleState::Extent::kRows:
    return count(spec_of_rows(spec)) / count(spec);
  case RuleState::Extent::kColumns:
    return count(spec_of_columns(spec)) / count(spec);
  }
  return 1;
}

} // namespace

std::unique_ptr<Rule> make_rule(const OptimizerConfig& config, std::string_view name) {
  for (const RuleEntry& entry : kRules)
    if (entry.name == name) return entry.make(config);
  raise<Error>("internal error: there is no update rule {}", name);
}

bool is_matrix(const nn::ShardSpec& spec) {
  return std::ssize(spec.shape) - spec.stacked_dims == 2 && !spec.table;
}

std::string rule_name(const OptimizerConfig& config, const nn::ShardSpec& spec) {
  const OptimizerKind kind = config.optimizer;
  if (kind == OptimizerKind::kAdafactor && std::ssize(spec.shape) - spec.stacked_dims < 2)
    return std::string(kOfVectors);
  const bool rest =
      (kind == OptimizerKind::kMuon || kind == OptimizerKind::kAdaptiveMuon) && !is_matrix(spec);
  return std::string(config::to_string(rest ? OptimizerKind::kAdam : kind));
}

void plan_rules(nn::ParamList& params, const OptimizerConfig& config) {
  for (nn::Param& param : params) {
    param.rule = rule_name(config, param.spec());
    param.whole = make_rule(config, param.rule)->needs_whole();
  }
}

bool by_chance(const RuleState& state) {
  return rounds_by_chance(state.growth.decay, state.dtype, state.growth.squared);
}

std::map<std::string, RuleState::Growth> growth_of_states(const OptimizerConfig& config) {
  std::map<std::string, RuleState::Growth> growth;
  for (const OptimizerKind kind : {config.optimizer, OptimizerKind::kAdam})
    for (const RuleState& state : make_rule(config, config::to_string(kind))->state(at::kFloat))
      growth.emplace(state.name, state.growth);
  return growth;
}

bool keeps_remainder(const OptimizerConfig& config, at::ScalarType dtype) {
  return config.store_param_remainders && dtype == at::kBFloat16;
}

at::ScalarType state_dtype(StateDtype dtype, at::ScalarType acc) {
  switch (dtype) {
  case StateDtype::kFp32:
    break;
  case StateDtype::kBf16:
    return at::kBFloat16;
  case StateDtype::kFp16:
    return at::kHalf;
  case StateDtype::kFp8:
    return at::kFloat8_e4m3fn;
  }
  return acc;
}

double vector_bytes(const OptimizerConfig& config, const nn::ShardSpec& spec,
                    at::ScalarType dtype) {
  const at::ScalarType acc = nn::acc_dtype(dtype);
  const auto wide = static_cast<double>(c10::elementSize(acc));
  double bytes = acc == dtype ? 0 : wide;
  if (keeps_remainder(config, dtype)) bytes = 2;
  if (config.ema_decay > 0) bytes += wide;
  for (const RuleState& state : make_rule(config, rule_name(config, spec))->state(acc))
    if (state.extent == RuleState::Extent::kElements)
      bytes += static_cast<double>(c10::elementSize(state.dtype));
  return bytes;
}

UpdateBytes update_bytes(const OptimizerConfig& config, const nn::ShardSpec& spec,
                         at::ScalarType dtype, const nn::Coordinates& where) {
  const std::string name = rule_name(config, spec);
  const std::unique_ptr<Rule> rule = make_rule(config, name);
  const at::ScalarType acc_type = nn::acc_dtype(dtype);
  const auto acc = static_cast<double>(c10::elementSize(acc_type));
  double count = 1;
  for (const int64_t n : nn::local_shape(spec, where)) count *= static_cast<double>(n);
  // fp32 numbers of what is stored in fewer bits.
  double wide = keeps_remainder(config, dtype) ? acc : 0;
  for (const RuleState& state : rule->state(acc_type))
    if (state.extent == RuleState::Extent::kElements && state.dtype != acc_type) wide += acc;
  if (!rule->needs_whole())
    return {.batch = 0, .working = wide * std::min(count, static_cast<double>(kWidened))};
  const bool adaptive = name == config::to_string(OptimizerKind::kAdaptiveMuon);
  if (!adaptive && name != config::to_string(OptimizerKind::kMuon)) // scaled gradients and squares
    return {.batch = acc + wide, .working = 2 * acc * count};
  const double element = config.muon_bf16 ? 2 : acc;
  const nn::Param param(spec, nn::Init::constant(0), dtype, where);
  const bool exchanged =
      !split_axis(param).empty() && config.muon_tp_mode != MuonTensorMode::kBlockwise;
  nn::Coordinates own = where;
  if (exchanged) own.erase(split_axis(param));
  // Of the largest matrix, or stack of them: x, the next x or the normalized one, and squares.
  double most = 0;
  const std::vector<int64_t> shape = nn::local_shape(spec, own);
  const auto columns = static_cast<double>(shape.back());
  for (const RowInterval& part : rows_of_matrices(spec, own, config.muon_split_qkv)) {
    const auto rows = static_cast<double>(part.size);
    const double stack = spec.stacked_dims > 0 && !exchanged ? static_cast<double>(shape[0]) : 1;
    const double least = std::min(rows, columns);
    most = std::max(most, stack * (std::max(rows * columns + 5 * least * least,
                                            2 * rows * columns + least * least) +
                                   (exchanged ? rows * columns : 0)));
  }
  return {.batch = element * (exchanged ? 3 : 1) + (adaptive && element < acc ? acc : 0) + wide,
          .working = element * most};
}

double state_bytes(const OptimizerConfig& config, const nn::ShardSpec& spec, at::ScalarType dtype,
                   const nn::Coordinates& where) {
  double bytes = vector_bytes(config, spec, dtype);
  const at::ScalarType acc = nn::acc_dtype(dtype);
  for (const RuleState& state : make_rule(config, rule_name(config, spec))->state(acc))
    if (state.extent != RuleState::Extent::kElements)
      bytes +=
          static_cast<double>(c10::elementSize(state.dtype)) * share_of(state.extent, spec, where);
  return bytes;
}

} // namespace pentatron::optim
