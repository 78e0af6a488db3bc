#include <algorithm>
#include <cmath>

#include "pentatron/base/error.h"
#include "pentatron/base/log.h"
#include "pentatron/base/text.h"
#include "pentatron/checkpoint/gguf/families/family.h"
#include "pentatron/checkpoint/gguf/rope.h"

namespace pentatron::checkpoint {

namespace {

void put_yarn(GgufKeyWriter& w, const Json& rope, int64_t positions) {
  const auto factor = json_get<double>(rope, "factor", GgufKeyWriter::kWhere);
  w.put("rope.scaling.type", "yarn");
  w.put("rope.scaling.factor", factor);
  w.put("rope.scaling.original_context_length",
        json_get_or<int64_t>(rope, "original_max_position_embeddings", positions,
                             GgufKeyWriter::kWhere));
  const double usual = 0.1 * std::log(factor) + 1;
  if (std::fabs(json_get_or<double>(rope, "attention_factor", usual, GgufKeyWriter::kWhere) -
                usual) > 1e-6)
    w.problem("rope_parameters.attention_factor differs from the value that llama.cpp uses");
  for (const char* key : {"mscale", "mscale_all_dim"}) {
    if (json_get_or<double>(rope, key, 0.0, GgufKeyWriter::kWhere) != 0)
      w.problem(fmt::format("rope_parameters.{} cannot be stored in a GGUF file of {}", key,
                            w.structure().family->architecture));
  }
  const bool truncate = w.structure().family->decoder.yarn_truncate;
  if (json_get_or<bool>(rope, "truncate", true, GgufKeyWriter::kWhere) != truncate)
    w.problem(fmt::format("rope_parameters.truncate={} cannot be stored in a GGUF file of {}",
                          !truncate, w.structure().family->architecture));
  w.put("rope.scaling.yarn_beta_fast",
        json_get_or<double>(rope, "beta_fast", 32.0, GgufKeyWriter::kWhere));
  w.put("rope.scaling.yarn_beta_slow",
        json_get_or<double>(rope, "beta_slow", 1.0, GgufKeyWriter::kWhere));
}

void put_longrope(GgufKeyWriter& w, const Json& rope, int64_t positions) {
  const char* const where = GgufKeyWriter::kWhere;
  const int64_t original = original_positions(w, positions);
  const auto factor = json_get_or<double>(
      rope, "factor", static_cast<double>(positions) / static_cast<double>(original), where);
  w.put("rope.scaling.attn_factor",
        json_get_or<double>(rope, "attention_factor", longrope_attention(factor, original), where));
  const std::pair<const char*, const char*> tensors[] = {{kLongFactors, "long_factor"},
                                                         {kShortFactors, "short_factor"}};
  for (const auto& [tensor, values] : tensors) {
    const auto given = json_get<std::vector<double>>(rope, values, where);
    w.out().divisors.emplace_back(tensor, std::vector<float>(given.begin(), given.end()));
  }
}

void put_rope(GgufKeyWriter& w, int64_t positions) {
  const Json rope = rope_of(w);
  const auto type = json_get<std::string>(rope, "rope_type", GgufKeyWriter::kWhere);
  const auto theta = json_get<double>(rope, "rope_theta", GgufKeyWriter::kWhere);
  if (type == "linear") {
    w.put("rope.scaling.type", "linear");
    w.put("rope.scaling.factor", json_get<double>(rope, "factor", GgufKeyWriter::kWhere));
  } else if (type == "yarn") {
    put_yarn(w, rope, positions);
  } else if (type == "llama3" && w.structure().family->decoder.llama3_rope) {
    const Llama3Rope llama3{
        .factor = json_get<double>(rope, "factor", GgufKeyWriter::kWhere),
        .low_freq_factor = json_get<double>(rope, "low_freq_factor", GgufKeyWriter::kWhere),
        .high_freq_factor = json_get<double>(rope, "high_freq_factor", GgufKeyWriter::kWhere),
        .original_positions = json_get_or<int64_t>(rope, "original_max_position_embeddings",
                                                   positions, GgufKeyWriter::kWhere)};
    w.out().divisors = {{kRopeFreqs, llama3_divisors(llama3, theta, w.structure().head_size)}};
    w.put(kLlama3Keys[0], llama3.factor);
    w.put(kLlama3Keys[1], llama3.low_freq_factor);
    w.put(kLlama3Keys[2], llama3.high_freq_factor);
    w.put(kLlama3Keys[3], llama3.original_positions);
  } else if (type == "longrope" && w.structure().family->decoder.longrope) {
    put_longrope(w, rope, positions);
  } else if (type != "default") {
    w.problem(fmt::format("rope_type={} cannot be stored in a GGUF file of {}", excerpt(type),
                          w.structure().family->architecture));
  }
  w.put("rope.freq_base", theta);
}

/// The dimensions of each head that rotate.
int64_t rotary_size(const GgufKeyWriter& w, const Json& rope) {
  const GgufStructure& s = w.structure();
  const GgufDecoder& d = s.family->decoder;
  if (!d.partial_rotary) return s.head_size;
  const double share = json_get_or<double>(rope, "partial_rotary_factor",
                                           w.get<double>("partial_rotary_factor", d.rotary_share),
                                           GgufKeyWriter::kWhere);
  return static_cast<int64_t>(static_cast<double>(s.head_size) * share);
}

void put_biases(GgufKeyWriter& w) {
  GgufStructure& s = w.structure();
  const GgufDecoder& d = s.family->decoder;
  const bool given = w.get<bool>("attention_bias", d.attention_bias);
  s.proj_bias = d.biases == GgufBiases::kAll || (given && d.biases == GgufBiases::kGiven);
  if (d.biases == GgufBiases::kAll && !given)
    w.problem(fmt::format("attention_bias=false cannot be stored in a GGUF file of {}",
                          s.family->architecture));
  s.qkv_bias =
      d.biases == GgufBiases::kQkv || (given && d.biases == GgufBiases::kQkvGiven) || s.proj_bias;
  s.mlp_bias = d.mlp_bias && w.get<bool>("mlp_bias", false);
  if (given && d.biases == GgufBiases::kRefused)
    w.problem(fmt::format("attention_bias=true cannot be stored in a GGUF file of {}",
                          s.family->architecture));
}

/// Every layer of such a family has experts.
void put_experts(GgufKeyWriter& w) {
  GgufStructure& s = w.structure();
  const GgufExperts& e = s.family->decoder.experts;
  if (e.count == nullptr) return;
  const auto problem = [&](const std::string& what) {
    w.problem(
        fmt::format("{} cannot be stored in a GGUF file of {}", what, s.family->architecture));
  };
  s.experts = w.size(w.has(e.count) ? e.count : "num_local_experts", e.default_count);
  s.expert_ffn = e.ffn == nullptr ? s.ffn : w.size(e.ffn, e.default_ffn);
  w.put("expert_count", s.experts);
  w.put("expert_used_count", w.size("num_experts_per_tok", e.default_top_k));
  if (e.writes_ffn) w.put("expert_feed_forward_length", s.expert_ffn);
  if (e.shared_ffn != nullptr) {
    s.shared_ffn = w.size(e.shared_ffn, e.default_shared_ffn);
    w.put("expert_shared_feed_forward_length", s.shared_ffn);
  }
  if (e.normed && w.get<bool>("norm_topk_prob", e.normed_default) != *e.normed)
    problem(fmt::format("norm_topk_prob={}", !*e.normed));
  if (const int64_t step = w.get<int64_t>("decoder_sparse_step", 1); step != 1)
    problem(fmt::format("decoder_sparse_step={}", step));
  if (w.has("mlp_only_layers") && !w.json()["mlp_only_layers"].empty())
    problem(fmt::format("mlp_only_layers={}", w.json()["mlp_only_layers"].dump()));
}

void put_activation(const GgufKeyWriter& w) {
  const GgufFamily& family = *w.structure().family;
  const auto& [key, known] = std::pair(family.decoder.activation_key, family.decoder.activations);
  const auto act = w.get<std::string>(key, std::string(known.front()));
  if (std::ranges::find(known, act) == known.end())
    w.problem(fmt::format("{}={} cannot be stored in a GGUF file of {}", key, excerpt(act),
                          family.architecture));
}

} // namespace

int64_t original_positions(const GgufKeyWriter& w, int64_t positions) {
  const char* const key = "original_max_position_embeddings";
  if (w.has(key)) return w.size(key);
  return json_get_or<int64_t>(rope_of(w), key, positions, GgufKeyWriter::kWhere);
}

Json rope_of(const GgufKeyWriter& w) {
  Json rope = Json::object();
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    if (!w.has(key)) continue;
    if (!w.json()[key].is_object())
      raise<DataError>("{}: {} is not an object", GgufKeyWriter::kWhere, key);
    // Gemma 3 has them for each kind of layer.
    const Json& given =
        w.json()[key].contains("full_attention") ? w.json()[key]["full_attention"] : w.json()[key];
    if (!given.is_object())
      raise<DataError>("{}: {}.full_attention is not an object", GgufKeyWriter::kWhere, key);
    rope.update(given);
  }
  if (!rope.contains("rope_type"))
    rope["rope_type"] = json_get_or<std::string>(rope, "type", "default", GgufKeyWriter::kWhere);
  if (!rope.contains("rope_theta"))
    rope["rope_theta"] = w.get<double>("rope_theta", w.structure().family->decoder.rope_theta);
  return rope;
}

void write_ignored_window(GgufKeyWriter& w, int64_t window) {
  w.put("attention.sliding_window", window);
  log::warning("llama.cpp ignores sliding_window={} for the architecture {}: it uses full "
               "attention for longer texts",
               window, w.structure().family->architecture);
}

void require_number(const GgufKeyWriter& w, const char* key, double given, double implied) {
  if (given != implied)
    w.problem(fmt::format("{}={} cannot be stored in a GGUF file of {}, which implies {}", key,
                          given, w.structure().family->architecture, implied));
}

void write_decoder(GgufKeyWriter& w) {
  GgufStructure& s = w.structure();
  const GgufFamily& family = *s.family;
  const GgufDecoder& d = family.decoder;
  s.layers = w.size("num_hidden_layers");
  s.hidden = w.size("hidden_size");
  s.heads = w.size("num_attention_heads");
  s.kv_heads = w.size("num_key_value_heads", s.heads);
  s.ffn = w.size("intermediate_size");
  s.head_size = w.size("head_dim", d.head_size.value_or(std::max<int64_t>(1, s.hidden / s.heads)));
  if (s.head_size % 2 != 0) w.problem(fmt::format("the head size {} is odd", s.head_size));
  put_biases(w);
  put_activation(w);
  s.untied = !w.get<bool>("tie_word_embeddings", d.tied);
  if (d.needs_untied && !s.untied)
    w.problem(fmt::format("tie_word_embeddings=true cannot be stored in a GGUF file of {}",
                          family.architecture));
  if (d.square && s.head_size * s.heads != s.hidden)
    w.problem(
        fmt::format("head_dim={} times num_attention_heads={} is not hidden_size={}, as a GGUF "
                    "file of {} implies",
                    s.head_size, s.heads, s.hidden, family.architecture));
  const int64_t positions = w.size("max_position_embeddings", d.positions);
  w.put("block_count", s.layers);
  w.put("context_length", positions);
  w.put("embedding_length", s.hidden);
  w.put("feed_forward_length", s.ffn);
  w.put("attention.head_count", s.heads);
  w.put("attention.head_count_kv", s.kv_heads);
  put_experts(w);
  put_rope(w, positions);
  w.put("attention.layer_norm_rms_epsilon", w.get<double>("rms_norm_eps", d.norm_epsilon));
  if (d.head_size || w.has("head_dim")) {
    w.put("attention.key_length", s.head_size);
    w.put("attention.value_length", s.head_size);
  }
  if (d.write_more != nullptr) d.write_more(w, positions);
  if (d.writes_rotary) w.put("rope.dimension_count", rotary_size(w, rope_of(w)));
}

} // namespace pentatron::checkpoint
