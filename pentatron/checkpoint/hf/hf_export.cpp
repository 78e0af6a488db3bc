#include "pentatron/checkpoint/hf/hf_export.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "pentatron/base/error.h"
#include "pentatron/checkpoint/hf/hf_config.h"
#include "pentatron/config/config.h"

namespace pentatron::checkpoint {

namespace {

using models::ActivationFunction;
using models::GptConfig;
using models::RopeScalingType;

/// With defaults written out, and without what does not change the numbers of a trained model.
GptConfig normalised(GptConfig c) {
  const GptConfig fresh;
  c.preset.clear();
  c.num_query_groups = c.query_groups();
  c.kv_channels = c.head_size();
  c.ffn_hidden_size = c.ffn_size();
  c.softmax_scale = c.softmax_scale.value_or(1.0 / std::sqrt(static_cast<double>(*c.kv_channels)));
  c.attention_dropout = c.hidden_dropout = 0;
  c.embedding_dropout.reset();
  c.init_method_std = fresh.init_method_std;
  c.embedding_init_method_std.reset();
  c.use_scaled_init_method = fresh.use_scaled_init_method;
  std::sort(c.full_attention_layers.begin(), c.full_attention_layers.end());
  const auto repeated = std::unique(c.full_attention_layers.begin(), c.full_attention_layers.end());
  c.full_attention_layers.erase(repeated, c.full_attention_layers.end());
  if (static_cast<int64_t>(c.full_attention_layers.size()) == c.num_layers) c.window_size.reset();
  if (!c.window_size) c.full_attention_layers.clear();
  if (c.position_embedding_type != models::PositionEmbedding::kRope) {
    c.rotary_base = fresh.rotary_base;
    c.rotary_percent = fresh.rotary_percent;
    c.rotary_interleaved = fresh.rotary_interleaved;
    c.rope_scaling = {};
  }
  models::RopeScalingConfig& s = c.rope_scaling;
  models::RopeScalingConfig kept{.type = s.type};
  if (s.type != RopeScalingType::kNone) kept.factor = s.factor;
  if (s.type == RopeScalingType::kLlama3) {
    kept.low_freq_factor = s.low_freq_factor;
    kept.high_freq_factor = s.high_freq_factor;
    kept.original_max_position_embeddings = s.original_max_position_embeddings;
  }
  if (s.type == RopeScalingType::kYarn) kept = s;
  s = kept;
  return c;
}

std::string activation_name(ActivationFunction f) {
  using A = ActivationFunction;
  switch (f) {
  case A::kSilu:
  case A::kSwiGlu:
    return "silu";
  case A::kGelu:
  case A::kGeGlu:
    return "gelu";
  case A::kGeluTanh:
    return "gelu_new";
  case A::kGeGluTanh:
    return "gelu_pytorch_tanh";
  case A::kRelu:
    return "relu";
  case A::kSquaredRelu:
    return "relu2";
  case A::kQuickGelu:
    return "quick_gelu";
  }
  PT_DCHECK(false);
}

Json gpt2_config(const GptConfig& c) {
  const bool unscaled = c.softmax_scale == 1.0;
  return {{"model_type", "gpt2"},
          {"architectures", {"GPT2LMHeadModel"}},
          {"n_layer", c.num_layers},
          {"n_embd", c.hidden_size},
          {"n_head", c.num_attention_heads},
          {"n_inner", c.ffn_size()},
          {"n_positions", c.max_position_embeddings},
          {"vocab_size", c.vocab_size},
          {"layer_norm_epsilon", c.layernorm_epsilon},
          {"activation_function", activation_name(c.activation_func)},
          {"attn_pdrop", c.attention_dropout},
          {"resid_pdrop", c.hidden_dropout},
          {"embd_pdrop", c.embedding_dropout.value_or(c.hidden_dropout)},
          {"scale_attn_weights", !unscaled},
          {"scale_attn_by_inverse_layer_idx", c.scale_attn_by_inverse_layer_idx},
          {"initializer_range", c.init_method_std},
          {"tie_word_embeddings", !c.untie_embeddings_and_output_weights}};
}

/// As transformers 5 writes it, and 4 before it, so that both and other programs read the file.
void add_rope(const GptConfig& c, Json& json) {
  const models::RopeScalingConfig& s = c.rope_scaling;
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
  json["rope_theta"] = c.rotary_base;
  json["rope_scaling"] = s.type == RopeScalingType::kNone ? Json() : rope;
  rope["rope_theta"] = c.rotary_base;
  json["rope_parameters"] = std::move(rope);
}

void add_windows(const GptConfig& c, const std::string& family, Json& json) {
  if (family == "mistral") json["sliding_window"] = c.window_size ? Json(*c.window_size) : Json();
  if (family != "qwen2" && family != "qwen3") return;
  const std::set<int64_t> full(c.full_attention_layers.begin(), c.full_attention_layers.end());
  Json types = Json::array();
  int64_t first = c.num_layers;
  for (int64_t i = c.num_layers - 1; i >= 0; --i)
    if (c.window_size && !full.contains(i)) first = i;
  for (int64_t i = 0; i < c.num_layers; ++i)
    types.push_back(c.window_size && !full.contains(i) ? "sliding_attention" : "full_attention");
  json["use_sliding_window"] = c.window_size.has_value();
  json["sliding_window"] = c.window_size ? Json(*c.window_size) : Json();
  json["max_window_layers"] = first;
  json["layer_types"] = std::move(types);
}

Json llama_like_config(const GptConfig& c, const std::string& family) {
  const char* architecture = family == "llama"     ? "LlamaForCausalLM"
                             : family == "mistral" ? "MistralForCausalLM"
                             : family == "qwen2"   ? "Qwen2ForCausalLM"
                                                   : "Qwen3ForCausalLM";
  Json json = {{"model_type", family},
               {"architectures", {architecture}},
               {"num_hidden_layers", c.num_layers},
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
  if (family == "llama" || family == "qwen3")
    json["attention_bias"] = c.add_qkv_bias && c.add_attention_proj_bias;
  if (family == "llama") json["mlp_bias"] = c.add_mlp_bias;
  add_rope(c, json);
  add_windows(c, family, json);
  return json;
}

/// What parse_hf_config() would not give back, as "model.rotary_percent=0.5".
std::vector<std::string> lost_keys(const GptConfig& wanted, const Json& json) {
  GptConfig found;
  try {
    found = parse_hf_config(json, "config.json").config;
  } catch (const Error& error) {
    return {error.what()};
  }
  std::vector<std::string> lost;
  for (const config::Difference& d : config::diff(normalised(wanted), normalised(found)))
    lost.push_back(fmt::format("model.{}={}", d.path, d.before));
  return lost;
}

} // namespace

bool same_model(const GptConfig& a, const GptConfig& b) {
  return config::diff(normalised(a), normalised(b)).empty();
}

HfExport make_hf_config(const GptConfig& config, const std::string& preferred) {
  std::vector<std::string> families = {"llama", "mistral", "qwen2", "qwen3", "gpt2"};
  if (const auto it = std::find(families.begin(), families.end(), preferred); it != families.end())
    std::rotate(families.begin(), it, it + 1);
  std::vector<std::string> fewest;
  std::string nearest_family;
  for (const std::string& family : families) {
    Json json = family == "gpt2" ? gpt2_config(config) : llama_like_config(config, family);
    std::vector<std::string> lost = lost_keys(config, json);
    if (lost.empty()) return {family, std::move(json)};
    if (nearest_family.empty() || lost.size() < fewest.size()) {
      fewest = std::move(lost);
      nearest_family = family;
    }
  }
  raise<ConfigError>("no Hugging Face family (llama, mistral, qwen2, qwen3, gpt2) supports this "
                     "model; the closest is {}, which does not support {}",
                     nearest_family, fmt::join(fewest, ", "));
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
  config["pad_token_id"] = number(generation.pad);
  config["eos_token_id"] = generation.eos.empty()       ? Json()
                           : generation.eos.size() == 1 ? Json(generation.eos[0])
                                                        : Json(generation.eos);
  config["torch_dtype"] = torch_name_of(dtype);
}

} // namespace pentatron::checkpoint
