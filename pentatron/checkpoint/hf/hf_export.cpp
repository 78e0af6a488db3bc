#include "pentatron/checkpoint/hf/hf_export.h"

#include <algorithm>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "pentatron/base/error.h"
#include "pentatron/checkpoint/hf/families/family.h"
#include "pentatron/checkpoint/hf/hf_config.h"
#include "pentatron/config/config.h"
#include "pentatron/models/layer_pattern.h"

namespace pentatron::checkpoint {

using models::ModelConfig;
using models::RopeScalingType;

namespace {

/// Defaults written out, layers as a list, and no size of MLPs that no layer has.
void normalise_experts(ModelConfig& c) {
  const ModelConfig fresh;
  c.moe_ffn_hidden_size = c.expert_ffn_size();
  c.moe_router_bias_update_rate = fresh.moe_router_bias_update_rate;
  c.moe_router_load_balancing_type = fresh.moe_router_load_balancing_type;
  c.moe_aux_loss_coeff = fresh.moe_aux_loss_coeff;
  c.moe_z_loss_coeff = c.moe_input_jitter_eps = 0;
  c.moe_router_force_load_balancing = fresh.moe_router_force_load_balancing;
  c.moe_expert_capacity_factor.reset();
  c.moe_token_drop_policy = fresh.moe_token_drop_policy;
  c.moe_pad_expert_input_to_capacity = fresh.moe_pad_expert_input_to_capacity;
  const bool softmax = c.moe_router_score_function == models::RouterScoreFunction::kSoftmax;
  // Softmax of all logits, divided by the sum of the selected, is that of the selected.
  if (softmax && c.moe_router_norm_topk_prob == true) {
    c.moe_router_pre_softmax = false;
    c.moe_router_norm_topk_prob.reset();
  }
  if (!softmax || c.moe_router_pre_softmax) c.moe_router_norm_topk_prob = c.normalizes_topk();
  if (c.num_layers > models::kLongestLayerList) return;
  std::vector<int> layers;
  for (int64_t i = 0; i < c.num_layers; ++i) layers.push_back(c.is_moe_layer(i));
  const bool all = std::ranges::find(layers, 0) == layers.end();
  c.moe_layer_freq = all ? "1" : fmt::format("[{}]", fmt::join(layers, ","));
  if (all) c.ffn_hidden_size = c.moe_ffn_hidden_size;
}

/// Without what its type does not use.
void normalise_scaling(models::RopeScalingConfig& s) {
  models::RopeScalingConfig kept{.type = s.type};
  if (s.type != RopeScalingType::kNone) kept.factor = s.factor;
  if (s.type == RopeScalingType::kLlama3 || s.type == RopeScalingType::kLongRope)
    kept.original_max_position_embeddings = s.original_max_position_embeddings;
  if (s.type == RopeScalingType::kLlama3) {
    kept.low_freq_factor = s.low_freq_factor;
    kept.high_freq_factor = s.high_freq_factor;
  }
  if (s.type == RopeScalingType::kLongRope) {
    kept.attention_factor = s.attention_factor;
    kept.short_factor = s.short_factor;
    kept.long_factor = s.long_factor;
  }
  if (s.type == RopeScalingType::kYarn) {
    kept = s;
    kept.short_factor.clear();
    kept.long_factor.clear();
  }
  s = std::move(kept);
}

/// With defaults written out, and without what does not change the numbers of a trained model.
ModelConfig normalised(ModelConfig c) {
  const ModelConfig fresh = ModelConfig::default_of(c.type);
  c.preset.clear();
  c.num_query_groups = c.query_groups();
  c.kv_channels = c.head_size();
  c.ffn_hidden_size = c.ffn_size();
  c.num_decoder_layers = c.decoder_layers();
  if (c.decoder_pad_token == c.decoder_start_token) c.decoder_pad_token.reset();
  c.softmax_scale = c.score_scale();
  if (c.multi_latent_attention)
    c.latent_layernorm_epsilon = c.latent_layernorm_epsilon.value_or(c.layernorm_epsilon);
  c.attention_dropout = c.hidden_dropout = 0;
  c.embedding_dropout.reset();
  c.init_method_std = fresh.init_method_std;
  c.embedding_init_method_std.reset();
  c.use_scaled_init_method = fresh.use_scaled_init_method;
  c.classifier_dropout.reset();
  c.mtp_loss_scaling_factor = fresh.mtp_loss_scaling_factor;
  c.padding_token = fresh.padding_token;
  if (c.head != models::ModelHead::kMaskedLm) { // no output layer
    c.binary_head = fresh.binary_head;
    c.untie_embeddings_and_output_weights = false;
  }
  if (c.head != models::ModelHead::kClassification) {
    c.num_labels = fresh.num_labels;
    c.label_names.clear();
  } else {
    c.label_names = c.class_names();
  }
  if (c.head != models::ModelHead::kNone) c.pooler = fresh.pooler;
  std::sort(c.full_attention_layers.begin(), c.full_attention_layers.end());
  const auto repeated = std::unique(c.full_attention_layers.begin(), c.full_attention_layers.end());
  c.full_attention_layers.erase(repeated, c.full_attention_layers.end());
  if (static_cast<int64_t>(c.full_attention_layers.size()) == c.num_layers) c.window_size.reset();
  if (!c.window_size) c.full_attention_layers.clear();
  if (c.num_moe_experts) normalise_experts(c);
  if (c.position_embedding_type != models::PositionEmbedding::kRope) {
    c.rotary_base = fresh.rotary_base;
    c.rotary_percent = fresh.rotary_percent;
    c.rotary_interleaved = fresh.rotary_interleaved;
    c.rope_scaling = {};
  }
  normalise_scaling(c.rope_scaling);
  normalise_scaling(c.rope_local_scaling);
  // Positions of their own for windows that are those of all.
  if (c.rope_local_base_freq == c.rotary_base && c.rope_local_scaling == c.rope_scaling)
    c.rope_local_base_freq.reset();
  if (!c.rope_local_base_freq) c.rope_local_scaling = {};
  return c;
}

Json config_of(const ModelConfig& c, const Family& family) {
  Json json = family.write(c);
  json["model_type"] = family.model_type;
  json["architectures"] = {family.architecture(c)};
  if (family.depths_key != nullptr) json[family.depths_key] = c.mtp_num_layers;
  if (family.padding_token && c.padding_token >= 0 && !json.contains("pad_token_id"))
    json["pad_token_id"] = c.padding_token;
  return json;
}

using Differences = std::vector<config::Difference>;

/// What parse_hf_config() would not give back. Throws what it throws if it refuses the file.
Differences lost_keys(const ModelConfig& wanted, const Json& json, const Family& family) {
  ModelConfig found = parse_hf_config(json, "config.json").config;
  if (family.depths_key != nullptr) found.mtp_num_layers = wanted.mtp_num_layers;
  found.pooler = wanted.pooler; // told by the tensors, not by config.json
  return config::diff(normalised(wanted), normalised(found));
}

/// "model.moe_router_enable_expert_bias=false": the settings with which the family holds the model;
/// empty if there is more to change.
std::string settings_for(const Family& family, ModelConfig config, const Differences& lost) {
  std::vector<std::string> settings;
  config::Violations violations;
  for (const config::Difference& d : lost) {
    const std::string setting = fmt::format("{}={}", d.path, d.after);
    config::apply_override(config, setting, violations);
    settings.push_back("model." + setting);
  }
  config::validate(config, violations);
  try {
    if (!violations.empty() || !lost_keys(config, config_of(config, family), family).empty())
      return {};
  } catch (const Error&) {
    return {};
  }
  return fmt::format("{}", fmt::join(settings, " and "));
}

} // namespace

bool same_model(const ModelConfig& a, const ModelConfig& b) {
  return config::diff(normalised(a), normalised(b)).empty();
}

HfExport make_hf_config(const ModelConfig& config, const std::string& preferred) {
  std::vector<const Family*> order;
  for (const Family& family : families())
    if (family.type == config.type) order.push_back(&family);
  std::stable_partition(order.begin(), order.end(),
                        [&](const Family* f) { return f->model_type == preferred; });
  Differences fewest;
  const Family* nearest = nullptr;
  std::string refusal;  // of the first that does not read what it wrote
  std::string obstacle; // of the first that holds the model, but not in transformers
  for (const Family* const family : order) {
    Json json = config_of(config, *family);
    Differences lost;
    try {
      lost = lost_keys(config, json, *family);
    } catch (const Error& error) {
      if (refusal.empty()) refusal = parts_of(error.what()).sentence;
      continue;
    }
    if (lost.empty()) {
      const std::string why = family->obstacle != nullptr ? family->obstacle(config) : "";
      if (why.empty()) return {std::string(family->model_type), std::move(json)};
      if (obstacle.empty())
        obstacle = fmt::format("transformers has no {} in which {}", family->model_type, why);
      continue;
    }
    if (nearest == nullptr || lost.size() < fewest.size()) {
      fewest = std::move(lost);
      nearest = family;
    }
  }
  const std::string_view type = config::to_string(config.type);
  if (!obstacle.empty())
    raise<ConfigError>("no Hugging Face family supports this model of type {}: {}", type, obstacle);
  if (nearest == nullptr)
    raise<ConfigError>("no Hugging Face family supports this model of type {}: {}", type, refusal);
  std::vector<std::string> unsupported;
  for (const config::Difference& d : fewest)
    unsupported.push_back(fmt::format("model.{}={}", d.path, d.before));
  const std::string settings = settings_for(*nearest, config, fewest);
  raise<ConfigError>("no Hugging Face family supports this model of type {}; the closest is {}, "
                     "which does not support {}{}{}",
                     type, nearest->model_type, fmt::join(unsupported, ", "),
                     settings.empty() ? "" : "\n  try: ", settings);
}

std::string torch_name_of(SafeDtype dtype) {
  switch (dtype) {
  case SafeDtype::kF64:
    return "float64";
  case SafeDtype::kF16:
    return "float16";
  case SafeDtype::kBF16:
    return "bfloat16";
  default:
    return "float32";
  }
}

void add_hf_details(Json& config, const GenerationDefaults& generation, SafeDtype dtype) {
  const auto number = [](const std::optional<int64_t>& id) { return id ? Json(*id) : Json(); };
  // Written also where there is none: otherwise transformers takes numbers of another model.
  config["bos_token_id"] = number(generation.bos);
  if (!config.contains("pad_token_id")) config["pad_token_id"] = number(generation.pad);
  config["eos_token_id"] = generation.eos.empty()       ? Json()
                           : generation.eos.size() == 1 ? Json(generation.eos[0])
                                                        : Json(generation.eos);
  config["torch_dtype"] = torch_name_of(dtype);
}

} // namespace pentatron::checkpoint
