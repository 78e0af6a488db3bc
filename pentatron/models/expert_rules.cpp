/// The rules of a model with experts.
#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "pentatron/base/error.h"
#include "pentatron/config/config.h"
#include "pentatron/models/layer_pattern.h"
#include "pentatron/models/model_config.h"

namespace pentatron::models {

void ModelConfig::validate_experts(config::Violations& violations, std::string_view path) const {
  const auto key = [&](std::string_view name) { return config::join(path, name); };
  const ModelConfig none;
  if (!num_moe_experts) {
    const auto idle = [&](bool given, const char* name) {
      if (given)
        violations.add(
            key(name),
            fmt::format("{} has no effect without {}", key(name), key("num_moe_experts")),
            fmt::format("{}=8", key("num_moe_experts")));
    };
    idle(moe_layer_freq != none.moe_layer_freq, "moe_layer_freq");
    idle(moe_ffn_hidden_size.has_value(), "moe_ffn_hidden_size");
    idle(moe_latent_size.has_value(), "moe_latent_size");
    idle(moe_router_topk != none.moe_router_topk, "moe_router_topk");
    idle(moe_router_logit_bias, "moe_router_logit_bias");
    idle(moe_router_score_function != none.moe_router_score_function, "moe_router_score_function");
    idle(moe_router_pre_softmax, "moe_router_pre_softmax");
    idle(moe_router_norm_topk_prob.has_value(), "moe_router_norm_topk_prob");
    idle(moe_router_topk_scaling_factor != none.moe_router_topk_scaling_factor,
         "moe_router_topk_scaling_factor");
    idle(moe_router_num_groups.has_value(), "moe_router_num_groups");
    idle(moe_router_group_topk.has_value(), "moe_router_group_topk");
    idle(moe_router_group_score_topk.has_value(), "moe_router_group_score_topk");
    idle(moe_router_enable_expert_bias, "moe_router_enable_expert_bias");
    idle(moe_router_load_balancing_type != none.moe_router_load_balancing_type,
         "moe_router_load_balancing_type");
    idle(moe_aux_loss_coeff != none.moe_aux_loss_coeff, "moe_aux_loss_coeff");
    idle(moe_z_loss_coeff != 0, "moe_z_loss_coeff");
    idle(moe_input_jitter_eps != 0, "moe_input_jitter_eps");
    idle(moe_router_force_load_balancing, "moe_router_force_load_balancing");
    idle(moe_expert_capacity_factor.has_value(), "moe_expert_capacity_factor");
    idle(moe_router_bias_update_rate != none.moe_router_bias_update_rate,
         "moe_router_bias_update_rate");
    idle(moe_token_drop_policy != none.moe_token_drop_policy, "moe_token_drop_policy");
    idle(moe_pad_expert_input_to_capacity, "moe_pad_expert_input_to_capacity");
    idle(moe_shared_expert_intermediate_size.has_value(), "moe_shared_expert_intermediate_size");
    idle(moe_shared_expert_gate, "moe_shared_expert_gate");
    return;
  }
  if (moe_shared_expert_gate && !moe_shared_expert_intermediate_size)
    violations.add(key("moe_shared_expert_gate"),
                   fmt::format("{} has no effect without {}", key("moe_shared_expert_gate"),
                               key("moe_shared_expert_intermediate_size")),
                   fmt::format("{}=false", key("moe_shared_expert_gate")));
  const auto alone = [&](bool given, const char* name, bool other_given, const char* other) {
    if (given && !other_given)
      violations.add(key(name), fmt::format("{} has no effect without {}", key(name), key(other)),
                     fmt::format("{}=null", key(name)));
  };
  alone(moe_router_num_groups.has_value(), "moe_router_num_groups",
        moe_router_group_topk.has_value(), "moe_router_group_topk");
  alone(moe_router_group_topk.has_value(), "moe_router_group_topk",
        moe_router_num_groups.has_value(), "moe_router_num_groups");
  alone(moe_router_group_score_topk.has_value(), "moe_router_group_score_topk",
        moe_router_num_groups.has_value(), "moe_router_num_groups");
  const int64_t experts = *num_moe_experts, groups = moe_router_num_groups.value_or(1),
                open = moe_router_group_topk.value_or(groups);
  if (experts < 1 || groups < 1 || open < 1) return; // their ranges tell it
  if (moe_router_topk > experts)
    violations.add(key("moe_router_topk"),
                   fmt::format("{}={} is more than {}={}", key("moe_router_topk"), moe_router_topk,
                               key("num_moe_experts"), experts),
                   fmt::format("{}={}", key("moe_router_topk"), experts));
  else if (experts % groups != 0) {
    violations.add(key("moe_router_num_groups"),
                   fmt::format("{}={} does not divide {}={}", key("moe_router_num_groups"), groups,
                               key("num_moe_experts"), experts),
                   fmt::format("{}={}", key("moe_router_num_groups"),
                               config::nearest_divisor(experts, groups)));
  } else if (open > groups || open * (experts / groups) < moe_router_topk)
    violations.add(key("moe_router_group_topk"),
                   fmt::format("{}={} of {} groups with {} experts each cannot give {}={} experts",
                               key("moe_router_group_topk"), open, groups, experts / groups,
                               key("moe_router_topk"), moe_router_topk),
                   fmt::format("{}={}", key("moe_router_group_topk"), groups));
  if (const int64_t best = moe_router_group_score_topk.value_or(1); best > experts / groups)
    violations.add(key("moe_router_group_score_topk"),
                   fmt::format("{}={} is more than the {} experts of a group",
                               key("moe_router_group_score_topk"), best, experts / groups),
                   fmt::format("{}={}", key("moe_router_group_score_topk"), experts / groups));
  const bool softmax = moe_router_score_function == RouterScoreFunction::kSoftmax;
  if (moe_router_pre_softmax && !softmax)
    violations.add(key("moe_router_pre_softmax"),
                   fmt::format("{}=true has no effect with {}={}", key("moe_router_pre_softmax"),
                               key("moe_router_score_function"),
                               config::to_string(moe_router_score_function)),
                   fmt::format("{}=false", key("moe_router_pre_softmax")));
  if (softmax && !moe_router_pre_softmax && moe_router_norm_topk_prob.has_value())
    violations.add(key("moe_router_norm_topk_prob"),
                   fmt::format("{} has no effect: the softmax of the selected experts sums to 1",
                               key("moe_router_norm_topk_prob")),
                   fmt::format("{}=true", key("moe_router_pre_softmax")));
  validate_balance(violations, path);
  if (num_layers > kLongestLayerList && moe_layer_freq.starts_with('['))
    return violations.add(key("moe_layer_freq"),
                          fmt::format("{} lists layers of a model with {}={}, more than the limit "
                                      "of {} for lists",
                                      key("moe_layer_freq"), key("num_layers"), num_layers,
                                      kLongestLayerList),
                          fmt::format("{}=1", key("moe_layer_freq")));
  try {
    parse_layer_pattern(moe_layer_freq, std::min(num_layers, kLongestLayerList));
  } catch (const ConfigError& error) {
    const MessageParts parts = parts_of(error.what());
    violations.add(key("moe_layer_freq"), key(parts.sentence), key(parts.remedy));
  }
}

/// Of what balances them.
void ModelConfig::validate_balance(config::Violations& violations, std::string_view path) const {
  const auto key = [&](std::string_view name) { return config::join(path, name); };
  const ModelConfig none;
  const auto idle = [&](bool given, const char* name, const std::string& why,
                        const std::string& remedy) {
    if (given)
      violations.add(key(name), fmt::format("{} has no effect {}", key(name), why), remedy);
  };
  const std::vector<LoadBalancing>& types = moe_router_load_balancing_type;
  const std::string type_key = key("moe_router_load_balancing_type"),
                    coeff_key = key("moe_aux_loss_coeff");
  const auto no_loss = std::ranges::find_if(types, [](LoadBalancing type) {
    return type == LoadBalancing::kSinkhorn || type == LoadBalancing::kNone;
  });
  const std::string_view way = no_loss == types.end() ? "" : config::to_string(*no_loss);
  const bool weighted = std::ranges::any_of(moe_aux_loss_coeff, [](double c) { return c != 0; });
  if (types.size() > 1 && no_loss != types.end())
    return violations.add(
        type_key,
        fmt::format("{} contains {}, which cannot be combined with load balancing losses", type_key,
                    way),
        fmt::format("{}={}", type_key, way));
  for (size_t i = 0; i < types.size(); ++i)
    if (std::ranges::count(types, types[i]) > 1)
      return violations.add(type_key,
                            fmt::format("{} has {} twice", type_key, config::to_string(types[i])),
                            fmt::format("{}={}", type_key, config::to_string(types[i])));
  if (no_loss == types.end() && (weighted || types.size() > 1) &&
      types.size() != moe_aux_loss_coeff.size())
    return violations.add(
        coeff_key,
        fmt::format("{} has {} value{} for the {} of {}", coeff_key, moe_aux_loss_coeff.size(),
                    moe_aux_loss_coeff.size() == 1 ? "" : "s", types.size(), type_key),
        fmt::format("{}=[{}]", coeff_key, fmt::join(std::vector<double>(types.size(), 0.01), ",")));
  idle(no_loss != types.end() && weighted, "moe_aux_loss_coeff",
       fmt::format("with {}={}", type_key, way), fmt::format("{}=0", coeff_key));
  idle(no_loss == types.end() && !weighted && types != none.moe_router_load_balancing_type,
       "moe_router_load_balancing_type", fmt::format("without {}", coeff_key),
       fmt::format("{}=[{}]", coeff_key, fmt::join(std::vector<double>(types.size(), 0.01), ",")));
  idle(!moe_router_enable_expert_bias && moe_router_bias_update_rate != 0 &&
           moe_router_bias_update_rate != none.moe_router_bias_update_rate,
       "moe_router_bias_update_rate",
       fmt::format("without {}", key("moe_router_enable_expert_bias")),
       fmt::format("{}=true", key("moe_router_enable_expert_bias")));
  const std::string capacity = fmt::format("without {}", key("moe_expert_capacity_factor")),
                    capacity_remedy = fmt::format("{}=1.25", key("moe_expert_capacity_factor"));
  idle(!moe_expert_capacity_factor && moe_token_drop_policy != none.moe_token_drop_policy,
       "moe_token_drop_policy", capacity, capacity_remedy);
  idle(!moe_expert_capacity_factor && moe_pad_expert_input_to_capacity,
       "moe_pad_expert_input_to_capacity", capacity, capacity_remedy);
  if (moe_router_enable_expert_bias && balanced_by(LoadBalancing::kSinkhorn))
    violations.add(key("moe_router_load_balancing_type"),
                   fmt::format("{}=sinkhorn and {}=true both balance the selection, and the bias "
                               "would outweigh the other",
                               key("moe_router_load_balancing_type"),
                               key("moe_router_enable_expert_bias")),
                   fmt::format("{}=none", key("moe_router_load_balancing_type")));
  idle(moe_router_force_load_balancing && balanced_by(LoadBalancing::kSinkhorn),
       "moe_router_load_balancing_type",
       fmt::format("with {}=true", key("moe_router_force_load_balancing")),
       fmt::format("{}=none", key("moe_router_load_balancing_type")));
}

} // namespace pentatron::models
