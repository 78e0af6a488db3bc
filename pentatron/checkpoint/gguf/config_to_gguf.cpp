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
  const GgufStructure& structure() const { return out_.structure; }
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
    // Gemma 3 has them for each kind of layer.
    const Json& given =
        w.json()[key].contains("full_attention") ? w.json()[key]["full_attention"] : w.json()[key];
    if (!given.is_object()) raise<DataError>("{}: {}.full_attention is not an object", kWhere, key);
    rope.update(given);
  }
  if (!rope.contains("rope_type"))
    rope["rope_type"] = json_get_or<std::string>(rope, "type", "default", kWhere);
  if (!rope.contains("rope_theta"))
    rope["rope_theta"] =
        w.get<double>("rope_theta", w.structure().architecture == "gemma3" ? 1e6 : 10000.0);
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

/// llama.cpp computes full attention for these architectures, whatever the file says.
void put_ignored_window(Writer& w, int64_t window) {
  w.put("attention.sliding_window", window);
  log::warning("llama.cpp ignores sliding_window={} for the architecture {}: it uses full "
               "attention for longer texts",
               window, w.structure().architecture);
}

/// Qwen's windows have no place in a file.
void refuse_window(Writer& w, const std::string& family) {
  if (!w.get<bool>("use_sliding_window", false) || !w.has("sliding_window")) return;
  bool windowed = w.get<int64_t>("max_window_layers", 28) < w.structure().layers;
  if (w.has("layer_types")) {
    windowed = false;
    for (const auto& type : w.get<std::vector<std::string>>("layer_types"))
      windowed = windowed || type != "full_attention";
  }
  if (windowed)
    w.problem(fmt::format("sliding_window={} in some layers of {} cannot be stored in GGUF",
                          w.get<int64_t>("sliding_window"), family));
}

/// Every how many layers one has no window: `usual` if it fits.
std::optional<int64_t> window_pattern(const std::vector<std::string>& types, int64_t usual) {
  const auto fits = [&](int64_t every) {
    for (size_t i = 0; i < types.size(); ++i) {
      const bool full = (static_cast<int64_t>(i) + 1) % every == 0;
      if (types[i] != (full ? "full_attention" : "sliding_attention")) return false;
    }
    return true;
  };
  if (fits(usual)) return usual;
  for (int64_t every = 1; every <= static_cast<int64_t>(types.size()) + 1; ++every)
    if (fits(every)) return every;
  return std::nullopt;
}

/// A number that llama.cpp takes from somewhere else.
void require_number(const Writer& w, const char* key, double given, double implied) {
  if (given != implied)
    w.problem(fmt::format("{}={} cannot be stored in a {} file, which stands for {}", key, given,
                          w.structure().architecture, implied));
}

void put_gemma(Writer& w) {
  const GgufStructure& s = w.structure();
  const bool gemma2 = s.architecture == "gemma2";
  require_number(w, "query_pre_attn_scalar", w.get<double>("query_pre_attn_scalar", 256),
                 static_cast<double>(gemma_query_scalar(s)));
  if (gemma2 && s.untied) w.problem("tie_word_embeddings=false cannot be stored in a gemma2 file");
  const int64_t usual = gemma2 ? 2 : 6;
  std::optional<int64_t> every = gemma2 ? usual : w.size("sliding_window_pattern", usual);
  if (w.has("layer_types"))
    every = window_pattern(w.get<std::vector<std::string>>("layer_types"), usual);
  if (!every) {
    w.problem("layer_types in which not every n-th layer alone is full_attention cannot be stored "
              "in GGUF");
    return;
  }
  w.put("attention.sliding_window", w.size("sliding_window", 4096));
  if (*every != usual) {
    w.put("attention.sliding_window_pattern", *every);
    log::warning("llama.cpp before 2026 ignores that every {} layers one has no window, and takes "
                 "{} instead",
                 *every, usual);
  }
  if (gemma2) {
    for (const auto& [key, usual_cap] :
         {std::pair{"attn_logit_softcapping", 50.0}, {"final_logit_softcapping", 30.0}}) {
      if (w.json().contains(key) && w.json()[key].is_null())
        w.problem(fmt::format("{}=null cannot be stored in a gemma2 file", key));
      w.put(key, w.get<double>(key, usual_cap));
    }
    return;
  }
  if (w.has("final_logit_softcapping"))
    w.put("final_logit_softcapping", w.get<double>("final_logit_softcapping"));
  Json sliding = Json::object();
  if (w.has("rope_parameters") && w.json()["rope_parameters"].is_object())
    sliding = w.json()["rope_parameters"].value("sliding_attention", Json::object());
  w.put("rope.freq_base_swa",
        json_get_or<double>(sliding, "rope_theta", w.get<double>("rope_local_base_freq", 10000.0),
                            kWhere));
}

/// The dimensions of each head that rotate.
int64_t rotary_size(const Writer& w, const Json& rope) {
  const GgufStructure& s = w.structure();
  if (s.architecture != "phi3" && s.architecture != "glm4") return s.head_size;
  const double share = json_get_or<double>(
      rope, "partial_rotary_factor",
      w.get<double>("partial_rotary_factor", s.architecture == "glm4" ? 0.5 : 1.0), kWhere);
  return static_cast<int64_t>(static_cast<double>(s.head_size) * share);
}

/// Values of keys that config.json leaves out, which are not Llama's.
int64_t usual_head_size(const std::string& family, const GgufStructure& s) {
  if (family == "qwen3") return 128;
  return is_gemma(s.architecture) ? 256 : std::max<int64_t>(1, s.hidden / s.heads);
}

void put_biases(Writer& w, const std::string& family) {
  GgufStructure& s = w.structure();
  const bool attention = w.get<bool>("attention_bias", family == "glm4");
  s.qkv_bias = family == "qwen2" || (attention && family != "phi3");
  s.proj_bias = (family == "llama" || family == "qwen3") && attention;
  s.mlp_bias = family == "llama" && w.get<bool>("mlp_bias", false);
  if (attention && (family == "mistral" || family == "olmo2" || is_gemma(s.architecture)))
    w.problem(fmt::format("attention_bias=true for {}", family));
}

void put_activation(const Writer& w) {
  const GgufStructure& s = w.structure();
  const bool gemma = is_gemma(s.architecture);
  const char* key = gemma ? "hidden_activation" : "hidden_act";
  const auto act = w.get<std::string>(key, gemma ? "gelu_pytorch_tanh" : "silu");
  const bool known =
      gemma ? act == "gelu_pytorch_tanh" || act == "gelu_new" : act == "silu" || act == "swish";
  if (!known)
    w.problem(
        fmt::format("{}={} cannot be stored in a {} file", key, excerpt(act), s.architecture));
}

void put_decoder(Writer& w, const std::string& family) {
  GgufStructure& s = w.structure();
  s.layers = w.size("num_hidden_layers");
  s.hidden = w.size("hidden_size");
  s.heads = w.size("num_attention_heads");
  s.kv_heads = w.size("num_key_value_heads", s.heads);
  s.ffn = w.size("intermediate_size");
  s.head_size = w.size("head_dim", usual_head_size(family, s));
  if (s.head_size % 2 != 0) w.problem(fmt::format("the head size {} is odd", s.head_size));
  put_biases(w, family);
  put_activation(w);
  s.untied = !w.get<bool>("tie_word_embeddings", is_gemma(s.architecture));
  if (family == "olmo2" && !s.untied)
    w.problem("tie_word_embeddings=true cannot be stored in an olmo2 file");
  if ((family == "olmo2" || family == "phi3") && s.head_size * s.heads != s.hidden)
    require_number(w, "head_dim", static_cast<double>(s.head_size),
                   static_cast<double>(s.hidden) / static_cast<double>(s.heads));
  const int64_t positions =
      w.size("max_position_embeddings", is_gemma(s.architecture) ? 8192 : 2048);
  w.put("block_count", s.layers);
  w.put("context_length", positions);
  w.put("embedding_length", s.hidden);
  w.put("feed_forward_length", s.ffn);
  w.put("attention.head_count", s.heads);
  w.put("attention.head_count_kv", s.kv_heads);
  put_rope(w, positions);
  const double eps = family == "olmo2" || family == "phi3" ? 1e-5
                     : family == "glm4"                    ? 1.5625e-7
                                                           : 1e-6;
  w.put("attention.layer_norm_rms_epsilon", w.get<double>("rms_norm_eps", eps));
  if (family == "qwen3" || is_gemma(s.architecture) || w.has("head_dim")) {
    w.put("attention.key_length", s.head_size);
    w.put("attention.value_length", s.head_size);
  }
  if (family == "mistral" && w.has("sliding_window"))
    put_ignored_window(w, w.size("sliding_window"));
  if (family == "phi3") {
    w.has("sliding_window") ? put_ignored_window(w, w.size("sliding_window"))
                            : w.put("attention.sliding_window", int64_t{0});
    w.put("rope.scaling.original_context_length",
          w.size("original_max_position_embeddings", positions));
  }
  if (is_gemma(s.architecture)) put_gemma(w);
  if (family.starts_with("qwen")) refuse_window(w, family);
  if (s.architecture == "llama" || family == "phi3" || family == "glm4")
    w.put("rope.dimension_count", rotary_size(w, rope_of(w)));
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
  const GgufFamily* const known = find_gguf_family(&GgufFamily::model_type, family);
  if (known == nullptr)
    raise<CheckpointError>("model_type={} cannot be written as GGUF\n  try: {}", excerpt(family),
                           gguf_family_list());
  out.structure.architecture = known->architecture;
  out.structure.vocab = w.size("vocab_size");
  family == "gpt2" ? put_gpt2(w) : put_decoder(w, family);
  w.put("vocab_size", out.structure.vocab);
  return out;
}

} // namespace pentatron::checkpoint
