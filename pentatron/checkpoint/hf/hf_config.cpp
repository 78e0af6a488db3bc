#include "pentatron/checkpoint/hf/hf_config.h"

#include <fmt/format.h>

#include "pentatron/base/error.h"
#include "pentatron/base/hf_cache.h"
#include "pentatron/base/json.h"
#include "pentatron/base/log.h"
#include "pentatron/config/config.h"

namespace pentatron::checkpoint {

namespace {

using models::ActivationFunction;
using models::GptConfig;

class Reader {
 public:
  Reader(const Json& json, std::string where) : json_(json), where_(std::move(where)) {
    if (!json_.is_object()) raise<DataError>("{} is not a JSON object", where_);
  }
  template <class T> T get(const char* key) const { return json_get<T>(json_, key, where_); }
  template <class T> T get(const char* key, T otherwise) const {
    return json_get_or<T>(json_, key, otherwise, where_);
  }
  template <class T> std::optional<T> find(const char* key) const {
    if (!json_.contains(key) || json_[key].is_null()) return std::nullopt;
    return json_get<T>(json_, key, where_);
  }
  const Json& json() const { return json_; }
  const std::string& where() const { return where_; }
  [[noreturn]] void refuse(const std::string& what) const {
    raise<ConfigError>("{}: {} is not supported", where_, what);
  }

 private:
  const Json& json_;
  std::string where_;
};

ActivationFunction activation(const Reader& in, const std::string& name, bool gated) {
  using A = ActivationFunction;
  if (name == "silu" || name == "swish") return gated ? A::kSwiGlu : A::kSilu;
  if (name == "gelu") return gated ? A::kGeGlu : A::kGelu;
  if (name == "gelu_new" || name == "gelu_pytorch_tanh")
    return gated ? A::kGeGluTanh : A::kGeluTanh;
  if (!gated && name == "relu") return A::kRelu;
  if (!gated && name == "relu2") return A::kSquaredRelu;
  if (!gated && name == "quick_gelu") return A::kQuickGelu;
  in.refuse(fmt::format("activation {}{}", name, gated ? " in a gated MLP" : ""));
}

GptConfig read_gpt2(const Reader& in) {
  GptConfig c;
  c.num_layers = in.get<int64_t>("n_layer", 12);
  c.hidden_size = in.get<int64_t>("n_embd", 768);
  c.num_attention_heads = in.get<int64_t>("n_head", 12);
  c.ffn_hidden_size = in.get<int64_t>("n_inner", 4 * c.hidden_size);
  c.vocab_size = in.get<int64_t>("vocab_size", 50257);
  c.max_position_embeddings = in.get<int64_t>("n_positions", 1024);
  c.position_embedding_type = models::PositionEmbedding::kLearnedAbsolute;
  c.normalization = models::Normalization::kLayerNorm;
  c.layernorm_epsilon = in.get<double>("layer_norm_epsilon", 1e-5);
  c.activation_func = activation(in, in.get<std::string>("activation_function", "gelu_new"), false);
  c.add_qkv_bias = c.add_attention_proj_bias = c.add_mlp_bias = true;
  c.attention_dropout = in.get<double>("attn_pdrop", 0.1);
  c.hidden_dropout = in.get<double>("resid_pdrop", 0.1);
  c.embedding_dropout = in.get<double>("embd_pdrop", 0.1);
  c.untie_embeddings_and_output_weights = !in.get<bool>("tie_word_embeddings", true);
  if (!in.get<bool>("scale_attn_weights", true)) c.softmax_scale = 1.0;
  c.scale_attn_by_inverse_layer_idx = in.get<bool>("scale_attn_by_inverse_layer_idx", false);
  if (in.get<bool>("add_cross_attention", false)) in.refuse("add_cross_attention=true");
  return c;
}

/// transformers 5 has everything under rope_parameters; earlier files have rope_theta and
/// rope_scaling beside each other.
void read_rope(const Reader& in, GptConfig& c) {
  Json rope = Json::object();
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    if (!in.json().contains(key) || in.json()[key].is_null()) continue;
    if (!in.json()[key].is_object()) raise<DataError>("{}: {} is not an object", in.where(), key);
    rope.update(in.json()[key]);
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
  c.rotary_base = number("rope_theta", in.get<double>("rope_theta", 10000.0));
  if (const double share =
          number("partial_rotary_factor", in.get<double>("partial_rotary_factor", 1.0));
      share != 1.0) {
    log::shared_warning(
        "{}: partial_rotary_factor={} has no effect, as in transformers for this model type",
        in.where(), share);
  }
  const std::string type = json_get_or<std::string>(
      rope, "rope_type", json_get_or<std::string>(rope, "type", "default", where), where);
  models::RopeScalingConfig& s = c.rope_scaling;
  if (type == "default") return;
  s.factor = number("factor", 1.0);
  s.original_max_position_embeddings = json_get_or<int64_t>(
      rope, "original_max_position_embeddings", c.max_position_embeddings, where);
  if (type == "linear") {
    s.type = models::RopeScalingType::kLinear;
  } else if (type == "llama3") {
    s.type = models::RopeScalingType::kLlama3;
    s.low_freq_factor = json_get<double>(rope, "low_freq_factor", where);
    s.high_freq_factor = json_get<double>(rope, "high_freq_factor", where);
  } else if (type == "yarn") {
    s.type = models::RopeScalingType::kYarn;
    s.beta_fast = number("beta_fast", 32.0);
    s.beta_slow = number("beta_slow", 1.0);
    s.truncate = json_get_or<bool>(rope, "truncate", true, where);
    s.attention_factor = optional("attention_factor");
    s.mscale = optional("mscale");
    s.mscale_all_dim = optional("mscale_all_dim");
  } else {
    in.refuse("rope_type " + type);
  }
}

/// Which layers have a sliding window, from layer_types or from max_window_layers.
void read_windows(const Reader& in, const std::string& family, GptConfig& c) {
  const bool always = family == "mistral";
  if (family == "llama" || (!always && !in.get<bool>("use_sliding_window", false))) return;
  c.window_size = in.find<int64_t>("sliding_window");
  if (!c.window_size || always) return;
  const auto types = in.get<std::vector<std::string>>("layer_types", {});
  if (!types.empty() && static_cast<int64_t>(types.size()) != c.num_layers) {
    raise<DataError>("{}: layer_types has {} entries, but num_hidden_layers is {}", in.where(),
                     types.size(), c.num_layers);
  }
  const int64_t first = in.get<int64_t>("max_window_layers", 28);
  for (int64_t i = 0; i < c.num_layers; ++i) {
    const bool full =
        types.empty() ? i < first : types.at(static_cast<size_t>(i)) == "full_attention";
    if (full) c.full_attention_layers.push_back(i);
  }
  if (static_cast<int64_t>(c.full_attention_layers.size()) == c.num_layers) {
    c.window_size.reset();
    c.full_attention_layers.clear();
  }
}

GptConfig read_llama_like(const Reader& in, const std::string& family) {
  GptConfig c;
  c.num_layers = in.get<int64_t>("num_hidden_layers");
  c.hidden_size = in.get<int64_t>("hidden_size");
  c.num_attention_heads = in.get<int64_t>("num_attention_heads");
  c.num_query_groups = in.get<int64_t>("num_key_value_heads", c.num_attention_heads);
  c.kv_channels = in.find<int64_t>("head_dim");
  if (!c.kv_channels && family == "qwen3") c.kv_channels = 128;
  c.ffn_hidden_size = in.get<int64_t>("intermediate_size");
  c.vocab_size = in.get<int64_t>("vocab_size");
  c.max_position_embeddings = in.get<int64_t>("max_position_embeddings", 2048);
  c.normalization = models::Normalization::kRmsNorm;
  c.layernorm_epsilon = in.get<double>("rms_norm_eps", 1e-6);
  c.activation_func = activation(in, in.get<std::string>("hidden_act", "silu"), true);
  const bool attention_bias = in.get<bool>("attention_bias", false);
  c.add_qkv_bias = family == "qwen2" || attention_bias;
  c.add_attention_proj_bias = (family == "llama" || family == "qwen3") && attention_bias;
  c.add_mlp_bias = family == "llama" && in.get<bool>("mlp_bias", false);
  c.qk_layernorm = family == "qwen3";
  c.attention_dropout = in.get<double>("attention_dropout", 0.0);
  c.untie_embeddings_and_output_weights = !in.get<bool>("tie_word_embeddings", false);
  read_rope(in, c);
  const auto types = in.get<std::vector<std::string>>("layer_types", {});
  if (!types.empty() && static_cast<int64_t>(types.size()) != c.num_layers) {
    raise<DataError>("{}: layer_types has {} entries, but num_hidden_layers={}", in.where(),
                     types.size(), c.num_layers);
  }
  read_windows(in, family, c);
  if (family == "mistral" && attention_bias) in.refuse("attention_bias=true for mistral");
  return c;
}

/// Nothing is made as large as a damaged file says.
void check_extents(const Reader& in) {
  constexpr int64_t kLayers = 10'000, kWidth = int64_t{1} << 24, kTokens = int64_t{1} << 31;
  const auto at_most = [&](int64_t limit, std::initializer_list<const char*> keys) {
    for (const char* key : keys)
      if (const auto value = in.find<int64_t>(key); value && (*value < 0 || *value > limit))
        raise<DataError>("{}: {}={} is not in 0 to {}", in.where(), key, *value, limit);
  };
  at_most(kLayers, {"n_layer", "num_hidden_layers"});
  at_most(kWidth, {"n_embd", "hidden_size", "n_head", "num_attention_heads", "num_key_value_heads",
                   "head_dim", "n_inner", "intermediate_size"});
  at_most(kTokens, {"vocab_size", "n_positions", "max_position_embeddings"});
}

} // namespace

HfModel parse_hf_config(const Json& json, const std::string& where) {
  const Reader in(json, where);
  HfModel model{.family = in.get<std::string>("model_type"), .config = {}};
  check_extents(in);
  if (model.family == "gpt2") {
    model.config = read_gpt2(in);
  } else if (model.family == "llama" || model.family == "mistral" || model.family == "qwen2" ||
             model.family == "qwen3") {
    model.config = read_llama_like(in, model.family);
  } else {
    raise<ConfigError>(
        "{}: model_type={} is not a supported family\n  try: gpt2, llama, mistral, qwen2 or qwen3",
        in.where(), model.family);
  }
  model.config.init_method_std = in.get<double>("initializer_range", 0.02);
  config::Violations violations;
  config::validate(model.config, violations);
  if (!violations.empty())
    raise<DataError>("{} is not a valid model configuration:\n{}", in.where(), violations.text());
  return model;
}

HfModel read_hf_config(const std::filesystem::path& folder) {
  if (!std::filesystem::exists(folder / "config.json")) {
    raise<DataError>("{} contains no config.json\n  try: {}", folder.string(),
                     download_or(folder, "the folder of a Hugging Face model, with config.json "
                                         "and model.safetensors"));
  }
  const std::filesystem::path file = folder / "config.json";
  return parse_hf_config(read_json(file), file.string());
}

} // namespace pentatron::checkpoint
