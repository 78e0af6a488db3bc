#include "pentatron/checkpoint/hf/families/decoder.h"

#include <algorithm>
#include <functional>

#include "pentatron/base/log.h"

namespace pentatron::checkpoint {

using models::ModelConfig;
using models::RopeScalingConfig;
using models::RopeScalingType;

ModelConfig read_decoder(const ConfigReader& in, const DecoderDefaults& defaults) {
  ModelConfig c;
  c.num_layers = in.get<int64_t>("num_hidden_layers");
  c.hidden_size = in.get<int64_t>("hidden_size");
  c.num_attention_heads = in.get<int64_t>("num_attention_heads");
  // null, unlike a file without the key, means as many as there are heads.
  const bool given = in.json().contains("num_key_value_heads");
  c.num_query_groups =
      in.get<int64_t>("num_key_value_heads",
                      given || !defaults.kv_heads ? c.num_attention_heads : *defaults.kv_heads);
  c.kv_channels = in.find<int64_t>("head_dim");
  if (!c.kv_channels) c.kv_channels = defaults.head_size;
  c.ffn_hidden_size = in.get<int64_t>("intermediate_size");
  c.vocab_size = in.get<int64_t>("vocab_size");
  c.max_position_embeddings = in.get<int64_t>("max_position_embeddings", defaults.max_positions);
  c.normalization = models::Normalization::kRmsNorm;
  c.layernorm_epsilon = in.get<double>("rms_norm_eps", defaults.norm_eps);
  const auto& [activation, name] = defaults.activation;
  c.activation_func = read_activation(in, activation, name, true);
  c.attention_dropout = in.get<double>("attention_dropout", 0.0);
  c.untie_embeddings_and_output_weights = !in.get<bool>("tie_word_embeddings", defaults.tied);
  const auto types = in.get<std::vector<std::string>>("layer_types", {});
  if (!types.empty() && static_cast<int64_t>(types.size()) != c.num_layers)
    raise<DataError>("{}: layer_types has {} entries, but num_hidden_layers={}", in.where(),
                     types.size(), c.num_layers);
  return c;
}

Json write_decoder(const ModelConfig& c) {
  return {{"num_hidden_layers", c.num_layers},
          {"hidden_size", c.hidden_size},
          {"num_attention_heads", c.num_attention_heads},
          {"num_key_value_heads", c.query_groups()},
          {"head_dim", c.head_size()},
          {"intermediate_size", c.ffn_size()},
          {"max_position_embeddings", c.max_position_embeddings},
          {"vocab_size", c.vocab_size},
          {"rms_norm_eps", c.layernorm_epsilon},
          {"hidden_act", activation_name(c.activation_func)},
          {"attention_dropout", c.attention_dropout},
          {"initializer_range", c.init_method_std},
          {"tie_word_embeddings", !c.untie_embeddings_and_output_weights},
          {"use_cache", true}};
}

std::string uneven_heads(const ModelConfig& c) {
  if (c.hidden_size % c.num_attention_heads == 0) return {};
  return fmt::format("hidden_size={} is not a multiple of num_attention_heads={}", c.hidden_size,
                     c.num_attention_heads);
}

void read_rope(const ConfigReader& in, const RopeRule& rule, ModelConfig& c) {
  Json rope = Json::object();
  for (const char* key :
       {"rope_parameters", "rope_scaling"}) { // transformers takes the latter first
    if (!in.json().contains(key) || in.json()[key].is_null()) continue;
    if (!in.json()[key].is_object()) raise<DataError>("{}: {} is not an object", in.where(), key);
    if (!in.json()[key].empty()) rope = in.json()[key];
  }
  const std::string where = in.where() + " (rotary positions)";
  const auto number = [&](const char* key, double otherwise) {
    return json_get_or<double>(rope, key, otherwise, where);
  };
  const auto optional = [&](const char* key) -> std::optional<double> {
    if (!rope.contains(key) || rope[key].is_null()) return std::nullopt;
    return json_get<double>(rope, key, where);
  };
  c.position_embedding_type = models::PositionEmbedding::kRope;
  c.rotary_base = number("rope_theta", in.get<double>("rope_theta", rule.theta));
  const double share =
      number("partial_rotary_factor", in.get<double>("partial_rotary_factor", rule.share));
  if (rule.partial) {
    c.rotary_percent = share;
  } else if (share != 1.0) {
    log::shared_warning(
        "{}: partial_rotary_factor={} has no effect, as in transformers for this model type",
        in.where(), share);
  }
  const std::string type = json_get_or<std::string>(
      rope, "rope_type", json_get_or<std::string>(rope, "type", "default", where), where);
  RopeScalingConfig& s = c.rope_scaling;
  if (type == "default") return;
  s.factor = number("factor", 1.0);
  const char* const original = "original_max_position_embeddings";
  s.original_max_position_embeddings = in.get<int64_t>(
      original, json_get_or<int64_t>(rope, original, c.max_position_embeddings, where));
  if (type == "linear") {
    s.type = RopeScalingType::kLinear;
  } else if (type == "llama3") {
    s.type = RopeScalingType::kLlama3;
    s.low_freq_factor = json_get<double>(rope, "low_freq_factor", where);
    s.high_freq_factor = json_get<double>(rope, "high_freq_factor", where);
  } else if (type == "yarn") {
    // transformers makes a ramp of half of it, which does not fit its frequencies.
    const auto rotary = static_cast<int64_t>(static_cast<double>(c.head_size()) * share);
    if (rule.partial && rotary % 2 != 0)
      in.refuse(fmt::format("rope_type yarn with an odd rotary size, {}", rotary));
    s.type = RopeScalingType::kYarn;
    s.factor = number("factor", static_cast<double>(c.max_position_embeddings) /
                                    static_cast<double>(s.original_max_position_embeddings));
    s.beta_fast = number("beta_fast", 32.0);
    s.beta_slow = number("beta_slow", 1.0);
    s.truncate = json_get_or<bool>(rope, "truncate", !rope.contains("truncate"), where);
    s.attention_factor = optional("attention_factor");
    s.mscale = optional("mscale");
    s.mscale_all_dim = optional("mscale_all_dim");
  } else if (type == "dynamic") {
    s.type = RopeScalingType::kDynamic;
  } else if (type == "longrope") {
    s.type = RopeScalingType::kLongRope;
    const double longer = static_cast<double>(c.max_position_embeddings) /
                          static_cast<double>(s.original_max_position_embeddings);
    s.factor = std::max(1.0, number("factor", longer));
    s.attention_factor = optional("attention_factor");
    s.short_factor = json_get<std::vector<double>>(rope, "short_factor", where);
    s.long_factor = json_get<std::vector<double>>(rope, "long_factor", where);
  } else {
    in.refuse("rope_type " + type);
  }
}

void write_rope(const ModelConfig& c, const RopeRule& rule, Json& json) {
  const RopeScalingConfig& s = c.rope_scaling;
  Json rope = {{"rope_type", "default"}};
  const auto add = [&](const char* key, const auto& value) { rope[key] = value; };
  if (s.type != RopeScalingType::kNone) add("factor", s.factor);
  if (s.type == RopeScalingType::kLinear) add("rope_type", "linear");
  if (s.type == RopeScalingType::kLlama3) {
    add("rope_type", "llama3");
    add("low_freq_factor", s.low_freq_factor);
    add("high_freq_factor", s.high_freq_factor);
    add("original_max_position_embeddings", s.original_max_position_embeddings);
  }
  if (s.type == RopeScalingType::kYarn) {
    add("rope_type", "yarn");
    add("original_max_position_embeddings", s.original_max_position_embeddings);
    add("beta_fast", s.beta_fast);
    add("beta_slow", s.beta_slow);
    add("truncate", s.truncate);
    if (s.attention_factor) add("attention_factor", *s.attention_factor);
    if (s.mscale) add("mscale", *s.mscale);
    if (s.mscale_all_dim) add("mscale_all_dim", *s.mscale_all_dim);
  }
  if (s.type == RopeScalingType::kDynamic) add("rope_type", "dynamic");
  if (s.type == RopeScalingType::kLongRope) {
    add("rope_type", "longrope");
    add("original_max_position_embeddings", s.original_max_position_embeddings);
    add("short_factor", s.short_factor);
    add("long_factor", s.long_factor);
    if (s.attention_factor) add("attention_factor", *s.attention_factor);
  }
  json["rope_theta"] = c.rotary_base;
  json["rope_scaling"] = s.type == RopeScalingType::kNone ? Json() : rope;
  rope["rope_theta"] = c.rotary_base;
  if (rule.partial) {
    json["partial_rotary_factor"] = c.rotary_percent;
    rope["partial_rotary_factor"] = c.rotary_percent;
  }
  json["rope_parameters"] = std::move(rope);
}

namespace {

bool has_window(const ModelConfig& c, int64_t layer) {
  return c.window_size &&
         std::ranges::find(c.full_attention_layers, layer) == c.full_attention_layers.end();
}

/// Layers for which `full` holds have no window; if all have none, there is no window.
void set_full_layers(const std::function<bool(int64_t)>& full, ModelConfig& c) {
  if (!c.window_size) return;
  for (int64_t i = 0; i < c.num_layers; ++i)
    if (full(i)) c.full_attention_layers.push_back(i);
  if (static_cast<int64_t>(c.full_attention_layers.size()) < c.num_layers) return;
  c.window_size.reset();
  c.full_attention_layers.clear();
}

} // namespace

std::optional<int64_t> read_window(const ConfigReader& in, int64_t otherwise) {
  return in.json().contains("sliding_window") ? in.find<int64_t>("sliding_window") : otherwise;
}

void read_layer_types(const ConfigReader& in, int64_t full_every, ModelConfig& c) {
  const auto types = in.get<std::vector<std::string>>("layer_types", {});
  for (const std::string& type : types)
    if (type != "full_attention" && type != "sliding_attention")
      in.refuse("layer_types with " + type);
  if (full_every < 1) in.refuse(fmt::format("sliding_window_pattern={}", full_every));
  set_full_layers(
      [&](int64_t i) {
        return types.empty() ? (i + 1) % full_every == 0
                             : types.at(static_cast<size_t>(i)) == "full_attention";
      },
      c);
}

void write_layer_types(const ModelConfig& c, Json& json) {
  Json types = Json::array();
  for (int64_t i = 0; i < c.num_layers; ++i)
    types.push_back(has_window(c, i) ? "sliding_attention" : "full_attention");
  json["layer_types"] = std::move(types);
}

void read_layer_windows(const ConfigReader& in, WindowRule rule, ModelConfig& c) {
  const bool given = in.json().contains("layer_types") && !in.json()["layer_types"].is_null();
  if (!in.get<bool>("use_sliding_window", false)) {
    const auto types = in.get<std::vector<std::string>>("layer_types", {});
    if (std::ranges::find(types, "sliding_attention") != types.end())
      in.refuse("layer_types with sliding_attention beside use_sliding_window=false");
    return;
  }
  c.window_size = read_window(in, 4096);
  if (given) return read_layer_types(in, 1, c);
  const int64_t border = in.get<int64_t>("max_window_layers", 28);
  set_full_layers(
      [&](int64_t i) {
        return rule == WindowRule::kFromMaxWindowLayers ? i < border : i % 2 == 1 || i >= border;
      },
      c);
}

void write_layer_windows(const ModelConfig& c, Json& json) {
  int64_t first = c.num_layers;
  for (int64_t i = c.num_layers - 1; i >= 0; --i)
    if (has_window(c, i)) first = i;
  json["use_sliding_window"] = c.window_size.has_value();
  json["sliding_window"] = c.window_size ? Json(*c.window_size) : Json();
  json["max_window_layers"] = first;
  write_layer_types(c, json);
}

namespace {

/// What latent attention makes heads with.
void name_latents(const ModelConfig& c, const std::string& hf, const std::string& own,
                  TensorNames& out) {
  if (c.q_lora_rank) {
    out.add_module(hf + "q_a_proj", own + "q_a", c.add_qkv_bias);
    out.add_module(hf + "q_a_layernorm", own + "q_a_norm");
    out.add_module(hf + "q_b_proj", own + "q_b");
  } else {
    out.add_module(hf + "q_proj", own + "q");
  }
  out.add_module(hf + "kv_a_proj_with_mqa", own + "kv_a", c.add_qkv_bias);
  out.add_module(hf + "kv_a_layernorm", own + "kv_a_norm");
  out.add_module(hf + "kv_b_proj", own + "kv_b");
}

} // namespace

void name_layer(const ModelConfig& c, const DecoderLayout& layout, int64_t like,
                const std::string& hf, const std::string& own, TensorNames& out) {
  const std::string attention = hf + "self_attn.", mlp = hf + "mlp.";
  if (c.softmax_type == models::SoftmaxType::kLearnable)
    out.add(attention + "sinks", own + "attention.sinks");
  const auto output = [&] {
    out.add_module(attention + "o_proj", own + "attention.proj", c.add_attention_proj_bias);
  };
  if (c.multi_latent_attention) {
    name_latents(c, attention, own + "attention.", out);
    output();
  } else if (layout.fused_qkv) {
    output();
    out.add_module(attention + "qkv_proj", own + "attention.qkv", c.add_qkv_bias);
  } else {
    for (const char* part : {"q", "k", "v"})
      out.add_module(attention + part + "_proj", own + "attention.qkv", c.add_qkv_bias, part);
    output();
  }
  if (c.qk_layernorm) {
    out.add_module(attention + "q_norm", own + "attention.q_norm");
    out.add_module(attention + "k_norm", own + "attention.k_norm");
  }
  if (c.is_moe_layer(like)) {
    name_experts(c, layout.experts, hf, own, out);
  } else if (layout.fused_gate_up) {
    out.add_module(mlp + "gate_up_proj", own + "mlp.fc1", c.add_mlp_bias);
  } else {
    out.add_module(mlp + "gate_proj", own + "mlp.fc1", c.add_mlp_bias, "gate");
    out.add_module(mlp + "up_proj", own + "mlp.fc1", c.add_mlp_bias, "up");
  }
  if (!c.is_moe_layer(like)) out.add_module(mlp + "down_proj", own + "mlp.fc2", c.add_mlp_bias);
  for (const auto& [theirs, ours] : layout.norms) out.add_module(hf + theirs, own + ours);
}

void name_decoder(const ModelConfig& c, const DecoderLayout& layout, TensorNames& out) {
  out.add("model.embed_tokens.weight", "embedding.word.weight");
  for (int64_t i = 0; i < c.num_layers; ++i)
    name_layer(c, layout, i, fmt::format("model.layers.{}.", i), fmt::format("layers.{}.", i), out);
  out.add_module("model.norm", "final_norm");
  if (c.untie_embeddings_and_output_weights) out.add("lm_head.weight", "output.weight");
}

} // namespace pentatron::checkpoint
