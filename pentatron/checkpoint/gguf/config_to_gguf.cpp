#include <cmath>

#include "pentatron/base/error.h"
#include "pentatron/base/log.h"
#include "pentatron/base/text.h"
#include "pentatron/checkpoint/gguf/gguf_config.h"
#include "pentatron/checkpoint/gguf/rope.h"

namespace pentatron::checkpoint {

namespace {

constexpr const char* kWhere = "config.json";

class Writer {
 public:
  Writer(const Json& hf, GgufHead& out, Problems& problems)
      : hf_(hf), out_(out), problems_(problems) {}

  template <class T> T get(const char* key) const { return json_get<T>(hf_, key, kWhere); }
  template <class T> T get(const char* key, T otherwise) const {
    return json_get_or<T>(hf_, key, std::move(otherwise), kWhere);
  }
  bool has(const char* key) const { return hf_.contains(key) && !hf_[key].is_null(); }
  const Json& json() const { return hf_; }
  int64_t size(const char* key) const { return checked(key, get<int64_t>(key)); }
  int64_t size(const char* key, int64_t otherwise) const {
    return checked(key, get<int64_t>(key, otherwise));
  }

  void put(const char* key, int64_t value) { add(key, static_cast<uint32_t>(value)); }
  void put(const char* key, double value) { add(key, static_cast<float>(value)); }
  void put(const char* key, const char* value) { add(key, std::string(value)); }
  void problem(std::string text) const { problems_.push_back(std::move(text)); }
  GgufStructure& structure() { return out_.structure; }
  GgufHead& out() { return out_; }

 private:
  int64_t checked(const char* key, int64_t value) const {
    if (value >= 1 && value <= INT32_MAX) return value;
    problem(fmt::format("{}={} is impossible", key, value));
    return 1;
  }
  void add(const char* key, GgufValue value) {
    out_.metadata.emplace_back(out_.structure.architecture + "." + key, std::move(value));
  }

  const Json& hf_;
  GgufHead& out_;
  Problems& problems_;
};

/// What transformers 5 has under rope_parameters and 4 beside each other.
Json rope_of(const Writer& w) {
  Json rope = Json::object();
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    if (!w.has(key)) continue;
    if (!w.json()[key].is_object()) raise<DataError>("{}: {} is not an object", kWhere, key);
    rope.update(w.json()[key]);
  }
  if (!rope.contains("rope_type"))
    rope["rope_type"] = json_get_or<std::string>(rope, "type", "default", kWhere);
  if (!rope.contains("rope_theta")) rope["rope_theta"] = w.get<double>("rope_theta", 10000.0);
  return rope;
}

void put_yarn(Writer& w, const Json& rope, int64_t positions) {
  const auto factor = json_get<double>(rope, "factor", kWhere);
  w.put("rope.scaling.type", "yarn");
  w.put("rope.scaling.factor", factor);
  w.put("rope.scaling.original_context_length",
        json_get_or<int64_t>(rope, "original_max_position_embeddings", positions, kWhere));
  const double usual = 0.1 * std::log(factor) + 1;
  if (std::fabs(json_get_or<double>(rope, "attention_factor", usual, kWhere) - usual) > 1e-6)
    w.problem("rope_parameters.attention_factor differs from the value that llama.cpp uses");
  for (const char* key : {"mscale", "mscale_all_dim"}) {
    if (json_get_or<double>(rope, key, 0.0, kWhere) != 0)
      w.problem(fmt::format("rope_parameters.{} cannot be stored in a {} file", key,
                            w.structure().architecture));
  }
  if (!json_get_or<bool>(rope, "truncate", true, kWhere))
    w.problem("rope_parameters.truncate=false cannot be stored in GGUF");
  w.put("rope.scaling.yarn_beta_fast", json_get_or<double>(rope, "beta_fast", 32.0, kWhere));
  w.put("rope.scaling.yarn_beta_slow", json_get_or<double>(rope, "beta_slow", 1.0, kWhere));
}

void put_rope(Writer& w, int64_t positions) {
  const Json rope = rope_of(w);
  const auto type = json_get<std::string>(rope, "rope_type", kWhere);
  const auto theta = json_get<double>(rope, "rope_theta", kWhere);
  if (type == "linear") {
    w.put("rope.scaling.type", "linear");
    w.put("rope.scaling.factor", json_get<double>(rope, "factor", kWhere));
  } else if (type == "yarn") {
    put_yarn(w, rope, positions);
  } else if (type == "llama3" && w.structure().architecture == "llama") {
    const Llama3Rope llama3{.factor = json_get<double>(rope, "factor", kWhere),
                            .low_freq_factor = json_get<double>(rope, "low_freq_factor", kWhere),
                            .high_freq_factor = json_get<double>(rope, "high_freq_factor", kWhere),
                            .original_positions = json_get_or<int64_t>(
                                rope, "original_max_position_embeddings", positions, kWhere)};
    w.out().rope_freqs = llama3_divisors(llama3, theta, w.structure().head_size);
  } else if (type != "default") {
    w.problem(fmt::format("rope_type={} cannot be stored in a {} file", excerpt(type),
                          w.structure().architecture));
  }
  w.put("rope.freq_base", theta);
}

/// Windows are told to llama.cpp's readers only where all layers have them, and even there it
/// computes full attention for llama.
void put_window(Writer& w, const std::string& family) {
  GgufStructure& s = w.structure();
  if (family == "mistral") {
    if (!w.has("sliding_window")) return;
    const int64_t window = w.size("sliding_window");
    w.put("attention.sliding_window", window);
    log::warning("llama.cpp ignores sliding_window={} for the architecture llama: it uses full "
                 "attention for longer texts",
                 window);
    return;
  }
  if (family == "llama" || !w.get<bool>("use_sliding_window", false) || !w.has("sliding_window"))
    return;
  bool windowed = w.get<int64_t>("max_window_layers", 28) < s.layers;
  if (w.has("layer_types")) {
    windowed = false;
    for (const auto& type : w.get<std::vector<std::string>>("layer_types"))
      windowed = windowed || type != "full_attention";
  }
  if (windowed)
    w.problem(fmt::format("sliding_window={} in some layers of {} cannot be stored in GGUF",
                          w.get<int64_t>("sliding_window"), family));
}

void put_llama(Writer& w, const std::string& family) {
  GgufStructure& s = w.structure();
  s.layers = w.size("num_hidden_layers");
  s.hidden = w.size("hidden_size");
  s.heads = w.size("num_attention_heads");
  s.kv_heads = w.size("num_key_value_heads", s.heads);
  s.ffn = w.size("intermediate_size");
  s.head_size =
      w.size("head_dim", family == "qwen3" ? 128 : std::max<int64_t>(1, s.hidden / s.heads));
  if (s.head_size % 2 != 0) w.problem(fmt::format("the head size {} is odd", s.head_size));
  const bool attention_bias = w.get<bool>("attention_bias", false);
  s.qkv_bias = family == "qwen2" || attention_bias;
  s.proj_bias = (family == "llama" || family == "qwen3") && attention_bias;
  s.mlp_bias = family == "llama" && w.get<bool>("mlp_bias", false);
  s.untied = !w.get<bool>("tie_word_embeddings", false);
  if (family == "mistral" && attention_bias) w.problem("attention_bias=true for mistral");
  const auto act = w.get<std::string>("hidden_act", "silu");
  if (act != "silu" && act != "swish")
    w.problem(
        fmt::format("hidden_act={} cannot be stored in a {} file", excerpt(act), s.architecture));
  const int64_t positions = w.size("max_position_embeddings", 2048);
  w.put("block_count", s.layers);
  w.put("context_length", positions);
  w.put("embedding_length", s.hidden);
  w.put("feed_forward_length", s.ffn);
  w.put("attention.head_count", s.heads);
  w.put("attention.head_count_kv", s.kv_heads);
  put_rope(w, positions);
  w.put("attention.layer_norm_rms_epsilon", w.get<double>("rms_norm_eps", 1e-6));
  if (family == "qwen3" || w.has("head_dim")) {
    w.put("attention.key_length", s.head_size);
    w.put("attention.value_length", s.head_size);
  }
  put_window(w, family);
  if (s.architecture == "llama") w.put("rope.dimension_count", s.head_size);
}

void put_gpt2(Writer& w) {
  GgufStructure& s = w.structure();
  s.layers = w.size("n_layer", 12);
  s.hidden = w.size("n_embd", 768);
  s.heads = w.size("n_head", 12);
  s.ffn = w.size("n_inner", 4 * s.hidden);
  s.positions = w.size("n_positions", 1024);
  s.untied = !w.get<bool>("tie_word_embeddings", true);
  const auto act = w.get<std::string>("activation_function", "gelu_new");
  if (act != "gelu_new" && act != "gelu_pytorch_tanh")
    w.problem(fmt::format("activation_function={} cannot be stored in a gpt2 file", excerpt(act)));
  if (!w.get<bool>("scale_attn_weights", true))
    w.problem("scale_attn_weights=false cannot be stored in a gpt2 file");
  for (const char* key : {"scale_attn_by_inverse_layer_idx", "add_cross_attention"}) {
    if (w.get<bool>(key, false))
      w.problem(fmt::format("{}=true cannot be stored in a gpt2 file", key));
  }
  w.put("block_count", s.layers);
  w.put("context_length", s.positions);
  w.put("embedding_length", s.hidden);
  w.put("feed_forward_length", s.ffn);
  w.put("attention.head_count", s.heads);
  w.put("attention.layer_norm_epsilon", w.get<double>("layer_norm_epsilon", 1e-5));
}

} // namespace

GgufHead config_to_gguf(const Json& hf, Problems& problems) {
  if (!hf.is_object()) raise<DataError>("{} is not a JSON object", kWhere);
  GgufHead out;
  Writer w(hf, out, problems);
  const auto family = w.get<std::string>("model_type");
  if (family != "gpt2" && family != "llama" && family != "mistral" && family != "qwen2" &&
      family != "qwen3")
    raise<CheckpointError>("model_type={} cannot be written as GGUF\n  try: gpt2, llama, mistral, "
                           "qwen2 or qwen3",
                           excerpt(family));
  out.structure.architecture = family == "mistral" ? "llama" : family;
  out.structure.vocab = w.size("vocab_size");
  family == "gpt2" ? put_gpt2(w) : put_llama(w, family);
  w.put("vocab_size", out.structure.vocab);
  return out;
}

} // namespace pentatron::checkpoint
