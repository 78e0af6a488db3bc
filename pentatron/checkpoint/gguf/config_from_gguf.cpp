#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include <fmt/ranges.h>

#include "pentatron/base/error.h"
#include "pentatron/base/text.h"
#include "pentatron/checkpoint/gguf/gguf_config.h"
#include "pentatron/checkpoint/gguf/quants.h"
#include "pentatron/checkpoint/gguf/rope.h"

namespace pentatron::checkpoint {

namespace {

/// A number that was rounded to float, as people write it: 1e-05 for 9.999999747378752e-06.
double as_written(double value) {
  const auto narrow = static_cast<float>(value);
  if (static_cast<double>(narrow) != value) return value;
  char text[32];
  const auto end = std::to_chars(text, text + sizeof(text), narrow).ptr;
  double out = value;
  std::from_chars(text, end, out);
  return out;
}

class Reader {
 public:
  Reader(const GgufFile& file, std::string architecture, Problems& problems)
      : file_(file), keys_(file.metadata()), architecture_(std::move(architecture)),
        problems_(problems) {}

  std::string full(std::string_view key) const { return architecture_ + "." + std::string(key); }
  int64_t size(std::string_view key) { return checked(full(key), keys_.integer(full(key))); }
  int64_t size(std::string_view key, int64_t otherwise) {
    return checked(full(key), keys_.find_integer(full(key)).value_or(otherwise));
  }
  std::optional<int64_t> find_size(std::string_view key) {
    const auto value = keys_.find_integer(full(key));
    return value ? std::optional(checked(full(key), *value)) : std::nullopt;
  }
  std::optional<double> number(std::string_view key) const {
    const auto value = keys_.find_number(full(key));
    return value ? std::optional(as_written(*value)) : std::nullopt;
  }
  double needed_number(std::string_view key) const {
    const auto value = number(key);
    if (!value) raise<DataError>("{} has no '{}' in its metadata", keys_.origin(), full(key));
    return *value;
  }
  std::optional<std::string> text(std::string_view key) const { return keys_.find_text(full(key)); }
  bool has(std::string_view key) const { return keys_.find(full(key)) != nullptr; }
  bool has_tensor(const std::string& name) const { return file_.find(name) != nullptr; }
  void problem(std::string text) { problems_.push_back(std::move(text)); }
  const GgufFile& file() const { return file_; }
  const GgufKeys& keys() const { return keys_; }

  /// Any key of the architecture that is none of `known`.
  void refuse_others(const std::vector<std::string_view>& known) {
    for (const auto& [key, value] : keys_.all()) {
      if (!key.starts_with(architecture_ + ".")) continue;
      const std::string_view name = std::string_view(key).substr(architecture_.size() + 1);
      if (std::ranges::find(known, name) == known.end())
        problem(fmt::format("metadata key '{}' is not supported", excerpt(key)));
    }
  }
  /// What means nothing as long as it has this value.
  void refuse_unless(std::string_view key, double neutral) {
    if (!has(key)) return;
    const GgufValue& value = *keys_.find(full(key));
    const bool* flag = std::get_if<bool>(&value);
    const double given = flag ? (*flag ? 1.0 : 0.0) : *keys_.find_number(full(key));
    if (given != neutral) problem(fmt::format("{}={} is not supported", full(key), given));
  }

 private:
  int64_t checked(const std::string& key, int64_t value) {
    if (value >= 1 && value <= std::numeric_limits<int32_t>::max()) return value;
    problem(fmt::format("{}={} is impossible", key, value));
    return 1;
  }

  const GgufFile& file_;
  const GgufKeys& keys_;
  std::string architecture_;
  Problems& problems_;
};

Json yarn(Reader& in, double factor) {
  Json rope = {{"rope_type", "yarn"}, {"factor", factor}};
  if (const auto original = in.find_size("rope.scaling.original_context_length"))
    rope["original_max_position_embeddings"] = *original;
  if (const auto fast = in.number("rope.scaling.yarn_beta_fast")) rope["beta_fast"] = *fast;
  if (const auto slow = in.number("rope.scaling.yarn_beta_slow")) rope["beta_slow"] = *slow;
  in.refuse_unless("rope.scaling.yarn_ext_factor", 1);
  return rope;
}

/// Null where frequencies are as they are.
Json read_rope_scaling(Reader& in) {
  const std::string type = in.text("rope.scaling.type").value_or("none");
  const double factor =
      in.number("rope.scaling.factor").value_or(in.number("rope.scale_linear").value_or(1.0));
  for (const char* key : {"attn_factor", "yarn_attn_factor"})
    in.refuse_unless(std::string("rope.scaling.") + key, 1);
  in.refuse_unless("rope.scaling.yarn_log_multiplier", 0);
  if (type == "yarn") return yarn(in, factor);
  const bool linear = type == "linear" || (type == "none" && in.has("rope.scale_linear"));
  if (linear && factor != 1 && factor != 0) return {{"rope_type", "linear"}, {"factor", factor}};
  if (type != "none" && type != "linear")
    in.problem(fmt::format("{}={} is not supported", in.full("rope.scaling.type"), excerpt(type)));
  return nullptr;
}

/// Llama 3's divisors as the parameters they come from.
Json read_rope_freqs(Reader& in, const GgufTensor& tensor, double theta, int64_t head_size) {
  const std::vector<int64_t> shape = {head_size / 2};
  if (tensor.type != GgmlType::kF32 || tensor.shape != shape) {
    in.problem(fmt::format("tensor 'rope_freqs.weight' is {} [{}] instead of F32 [{}]",
                           name_of(tensor.type), fmt::join(tensor.shape, ", "), shape[0]));
    return nullptr;
  }
  std::vector<float> divisors(static_cast<size_t>(shape[0]));
  dequantize(tensor.type, tensor.data, divisors);
  const auto rope = find_llama3_rope(divisors, theta, head_size);
  if (!rope) {
    in.problem(
        "the values of tensor 'rope_freqs.weight' do not come from Llama 3's frequency scaling");
    return nullptr;
  }
  if (rope->factor == 1) return nullptr;
  return {{"rope_type", "llama3"},
          {"factor", as_written(rope->factor)},
          {"low_freq_factor", rope->low_freq_factor},
          {"high_freq_factor", rope->high_freq_factor},
          {"original_max_position_embeddings", rope->original_positions}};
}

/// Sizes, which all decoders but GPT-2 have under the same keys.
void read_sizes(Reader& in, GgufStructure& s) {
  s.layers = in.size("block_count");
  s.hidden = in.size("embedding_length");
  s.heads = in.size("attention.head_count");
  s.kv_heads = in.size("attention.head_count_kv", s.heads);
  s.ffn = in.size("feed_forward_length");
  s.head_size = in.size("attention.key_length", std::max<int64_t>(1, s.hidden / s.heads));
  if (in.size("attention.value_length", s.head_size) != s.head_size)
    in.problem("keys and values with different head sizes are not supported");
  if (s.head_size % 2 != 0) in.problem(fmt::format("the head size {} is odd", s.head_size));
  if (s.heads % s.kv_heads != 0)
    in.problem(fmt::format("{} attention heads cannot be divided evenly among {} key-value heads",
                           s.heads, s.kv_heads));
}

/// The share of a head that rotates, of which transformers takes the whole part: 1 for
/// architectures that have no such share.
double rotary_share(Reader& in, const GgufStructure& s) {
  const int64_t rotary = in.size("rope.dimension_count", s.head_size);
  const bool partial = s.architecture == "phi3" || s.architecture == "glm4";
  if (rotary == s.head_size) return 1;
  if (!partial || rotary > s.head_size) {
    in.problem(fmt::format("{}={} with a head size of {} is not supported",
                           in.full("rope.dimension_count"), rotary, s.head_size));
    return 1;
  }
  const auto head = static_cast<double>(s.head_size);
  const double share = static_cast<double>(rotary) / head;
  return static_cast<int64_t>(head * share) == rotary ? share : std::nextafter(share, 1.0);
}

void read_biases(Reader& in, GgufStructure& s) {
  const bool qwen2 = s.architecture == "qwen2", llama = s.architecture == "llama";
  if (qwen2 || s.architecture == "glm4") {
    s.qkv_bias = qwen2 || in.has_tensor("blk.0.attn_q.bias");
  } else if (llama || s.architecture == "qwen3") {
    s.qkv_bias = s.proj_bias =
        in.has_tensor("blk.0.attn_q.bias") || in.has_tensor("blk.0.attn_output.bias");
    s.mlp_bias = llama && in.has_tensor("blk.0.ffn_up.bias");
  }
}

/// The window, if the file has one; 0 stands for none.
std::optional<int64_t> read_window(Reader& in) {
  constexpr const char* kKey = "attention.sliding_window";
  if (in.keys().find_integer(in.full(kKey)) == 0) return std::nullopt;
  return in.find_size(kKey);
}

/// Every `sliding_window_pattern`-th layer has no window.
void read_gemma(Reader& in, const GgufStructure& s, Json& hf) {
  const bool gemma2 = s.architecture == "gemma2";
  auto window = read_window(in);
  if (gemma2 && !in.has("attention.sliding_window")) window = 4096;
  int64_t every = gemma2 ? 2 : 6;
  if (const auto pattern = in.find_size("attention.sliding_window_pattern")) every = *pattern;
  Json types = Json::array();
  for (int64_t i = 0; i < std::min<int64_t>(s.layers, in.file().tensors().size()); ++i)
    types.push_back(window && (i + 1) % every != 0 ? "sliding_attention" : "full_attention");
  hf["layer_types"] = std::move(types);
  hf["sliding_window"] = window.value_or(4096);
  hf["hidden_activation"] = "gelu_pytorch_tanh";
  hf["query_pre_attn_scalar"] = gemma_query_scalar(s);
  if (gemma2) {
    hf["attn_logit_softcapping"] = in.number("attn_logit_softcapping").value_or(50);
    hf["final_logit_softcapping"] = in.number("final_logit_softcapping").value_or(30);
    if (const double theta = hf["rope_theta"];
        in.number("rope.freq_base_swa").value_or(theta) != theta)
      in.problem(fmt::format("{} that differs from rope.freq_base is not supported",
                             in.full("rope.freq_base_swa")));
    return;
  }
  const auto cap = in.number("final_logit_softcapping");
  hf["final_logit_softcapping"] = cap && *cap != 0 ? Json(*cap) : Json();
  const double local = in.number("rope.freq_base_swa").value_or(10000.0);
  hf["rope_local_base_freq"] = local;
  Json full = hf["rope_scaling"].is_null() ? Json{{"rope_type", "default"}} : hf["rope_scaling"];
  full["rope_theta"] = hf["rope_theta"];
  hf["rope_parameters"] = {
      {"full_attention", std::move(full)},
      {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", local}}}};
}

/// "mistral" is what llama.cpp has as llama with a window.
std::string_view family_of(const GgufStructure& s, bool window) {
  if (s.architecture == "llama" && window) return "mistral";
  return find_gguf_family(&GgufFamily::architecture, s.architecture)->model_type;
}

void read_windows(Reader& in, const GgufStructure& s, Json& hf) {
  if (is_gemma(s.architecture)) return read_gemma(in, s, hf);
  const auto window = read_window(in);
  if (s.architecture == "phi3") {
    hf["sliding_window"] = window ? Json(*window) : Json();
  } else if (s.architecture == "llama") {
    if (!window) return;
    hf["sliding_window"] = *window;
    if (s.qkv_bias || s.mlp_bias)
      in.problem("biases together with a sliding window are not supported");
  } else if (window) {
    in.problem(fmt::format("{} does not specify which layers use the sliding window",
                           in.full("attention.sliding_window")));
  }
}

void read_decoder(Reader& in, GgufConfig& out) {
  GgufStructure& s = out.structure;
  Json& hf = out.hf;
  read_sizes(in, s);
  read_biases(in, s);
  const bool llama = s.architecture == "llama", qwen2 = s.architecture == "qwen2",
             qwen = qwen2 || s.architecture == "qwen3";
  const double share = rotary_share(in, s);
  const double theta = in.number("rope.freq_base").value_or(10000.0);
  Json scaling = read_rope_scaling(in);
  if (const GgufTensor* freqs = llama ? in.file().find("rope_freqs.weight") : nullptr) {
    if (!scaling.is_null())
      in.problem("rope_freqs.weight together with rope.scaling.type is not supported");
    scaling = read_rope_freqs(in, *freqs, theta, s.head_size);
  }
  const std::string_view family = family_of(s, read_window(in).has_value());
  hf["model_type"] = family;
  hf["architectures"] = {find_gguf_family(&GgufFamily::model_type, family)->model_class};
  hf["num_hidden_layers"] = s.layers;
  hf["hidden_size"] = s.hidden;
  hf["intermediate_size"] = s.ffn;
  hf["num_attention_heads"] = s.heads;
  hf["num_key_value_heads"] = s.kv_heads;
  if (!qwen2)
    hf["head_dim"] = s.head_size;
  else if (s.head_size * s.heads != s.hidden)
    in.problem(fmt::format("{}={} is not supported for qwen2", in.full("attention.key_length"),
                           s.head_size));
  if (!is_gemma(s.architecture)) hf["hidden_act"] = "silu";
  hf["rms_norm_eps"] = in.needed_number("attention.layer_norm_rms_epsilon");
  hf["max_position_embeddings"] = in.size("context_length");
  // Read by transformers 4 and 5; rope_parameters only by 5.
  hf["rope_theta"] = theta;
  hf["rope_scaling"] = scaling;
  if (s.architecture == "phi3" || s.architecture == "glm4") hf["partial_rotary_factor"] = share;
  if (s.architecture == "phi3")
    hf["original_max_position_embeddings"] =
        in.size("rope.scaling.original_context_length", in.size("context_length"));
  if (family == "llama") hf["mlp_bias"] = s.mlp_bias;
  if (!qwen2 && s.architecture != "phi3" && family != "mistral") hf["attention_bias"] = s.qkv_bias;
  read_windows(in, s, hf);
  if (qwen) hf["use_sliding_window"] = false;
}

void read_gpt2(Reader& in, GgufConfig& out) {
  GgufStructure& s = out.structure;
  Json& hf = out.hf;
  s.layers = in.size("block_count");
  s.hidden = in.size("embedding_length");
  s.heads = in.size("attention.head_count");
  s.ffn = in.size("feed_forward_length", 4 * s.hidden);
  s.positions = in.size("context_length");
  if (s.hidden % s.heads != 0)
    in.problem(
        fmt::format("{} features cannot be divided evenly among {} heads", s.hidden, s.heads));
  if (in.size("attention.head_count_kv", s.heads) != s.heads)
    in.problem("fewer key-value heads than query heads are not supported for gpt2");
  hf = {{"model_type", "gpt2"},
        {"architectures", {"GPT2LMHeadModel"}},
        {"n_layer", s.layers},
        {"n_embd", s.hidden},
        {"n_head", s.heads},
        {"n_inner", s.ffn},
        {"n_positions", s.positions},
        {"n_ctx", s.positions},
        {"activation_function", "gelu_new"},
        {"layer_norm_epsilon", in.needed_number("attention.layer_norm_epsilon")}};
}

/// The element type of most matrices.
std::string most_common_dtype(const GgufFile& file) {
  std::map<std::string, size_t> counts;
  for (const GgufTensor& tensor : file.tensors()) {
    if (tensor.shape.size() < 2) continue;
    const std::string name = tensor.type == GgmlType::kF16    ? "float16"
                             : tensor.type == GgmlType::kBF16 ? "bfloat16"
                                                              : "float32";
    ++counts[name];
  }
  if (counts.empty()) return "float32";
  return std::ranges::max_element(counts, {}, [](const auto& c) { return c.second; })->first;
}

std::vector<std::string_view> known_keys(std::string_view architecture) {
  std::vector<std::string_view> known = {"vocab_size",
                                         "context_length",
                                         "embedding_length",
                                         "block_count",
                                         "feed_forward_length",
                                         "tensor_data_layout",
                                         "expert_count",
                                         "expert_used_count",
                                         "attention.head_count",
                                         "attention.head_count_kv",
                                         "attention.key_length",
                                         "attention.value_length",
                                         "attention.layer_norm_rms_epsilon",
                                         "attention.layer_norm_epsilon",
                                         "attention.causal",
                                         "attention.sliding_window",
                                         "attention.max_alibi_bias",
                                         "attention.clamp_kqv",
                                         "rope.dimension_count",
                                         "rope.freq_base",
                                         "rope.scale_linear",
                                         "rope.scaling.type",
                                         "rope.scaling.factor",
                                         "rope.scaling.original_context_length",
                                         "rope.scaling.finetuned",
                                         "rope.scaling.attn_factor",
                                         "rope.scaling.yarn_attn_factor",
                                         "rope.scaling.yarn_log_multiplier",
                                         "rope.scaling.yarn_ext_factor",
                                         "rope.scaling.yarn_beta_fast",
                                         "rope.scaling.yarn_beta_slow",
                                         "use_parallel_residual"};
  if (is_gemma(architecture))
    for (const char* key :
         {"final_logit_softcapping", "attention.sliding_window_pattern", "rope.freq_base_swa"})
      known.push_back(key);
  if (architecture == "gemma2") known.push_back("attn_logit_softcapping");
  return known;
}

} // namespace

GgufConfig config_from_gguf(const GgufFile& file, Problems& problems) {
  const GgufKeys& keys = file.metadata();
  GgufConfig out;
  out.structure.architecture = keys.text("general.architecture");
  const std::string& architecture = out.structure.architecture;
  if (find_gguf_family(&GgufFamily::architecture, architecture) == nullptr)
    raise<CheckpointError>("{}: general.architecture={} is not supported\n  try: a {} model",
                           keys.origin(), excerpt(architecture), gguf_family_list());
  if (const auto parts = keys.find_integer("split.count"); parts && *parts > 1)
    raise<CheckpointError>("{} is one part of a model that is split into {} files\n  try: join "
                           "them with llama-gguf-split --merge",
                           keys.origin(), *parts);
  Reader in(file, architecture, problems);
  in.refuse_others(known_keys(architecture));
  in.refuse_unless("expert_count", 0);
  in.refuse_unless("attention.causal", 1);
  in.refuse_unless("attention.max_alibi_bias", 0);
  in.refuse_unless("attention.clamp_kqv", 0);
  in.refuse_unless("use_parallel_residual", 0);
  architecture == "gpt2" ? read_gpt2(in, out) : read_decoder(in, out);

  GgufStructure& s = out.structure;
  s.untied = in.has_tensor("output.weight");
  const GgufTensor* embedding = file.find("token_embd.weight");
  s.vocab = embedding && embedding->shape.size() == 2 ? embedding->shape[0] : 0;
  if (s.vocab < 1)
    problems.push_back("'token_embd.weight' is missing or does not have one row per token");
  if (const auto vocab = in.find_size("vocab_size"); vocab && *vocab != s.vocab)
    problems.push_back(fmt::format("{}={}, but 'token_embd.weight' has {} rows",
                                   in.full("vocab_size"), *vocab, s.vocab));
  // A layer has 9 tensors or more; with far fewer the number is wrong, and nothing is made of it.
  if (static_cast<uint64_t>(s.layers) > file.tensors().size() / 4 + 1)
    problems.push_back(fmt::format("{}={}, but there are {} tensors", in.full("block_count"),
                                   s.layers, file.tensors().size()));
  out.hf["vocab_size"] = s.vocab;
  out.hf["tie_word_embeddings"] = !s.untied;
  out.hf["torch_dtype"] = most_common_dtype(file);
  for (const auto& [key, name] : {std::pair("bos_token_id", "tokenizer.ggml.bos_token_id"),
                                  std::pair("eos_token_id", "tokenizer.ggml.eos_token_id"),
                                  std::pair("pad_token_id", "tokenizer.ggml.padding_token_id")}) {
    if (const auto id = keys.find_integer(name)) out.hf[key] = *id;
  }
  return out;
}

} // namespace pentatron::checkpoint
