/// DeepSeek-V3: llama.cpp's deepseek2, of which it is the part with sigmoid scores. Files have
/// kv_b_proj as keys, transposed, and values of each head, and interleaved rotary pairs, as
/// Hugging Face does with rope_interleave. Layers of multi-token prediction are not in them.
#include <cmath>
#include <limits>

#include "pentatron/base/log.h"
#include "pentatron/base/text.h"
#include "pentatron/checkpoint/gguf/families/all.h"

namespace pentatron::checkpoint {

namespace {

constexpr std::string_view kDeepSeekKeys[] = {
    "leading_dense_block_count", "attention.q_lora_rank",      "attention.kv_lora_rank",
    "attention.key_length_mla",  "attention.value_length_mla", "expert_feed_forward_length",
    "expert_shared_count",       "expert_weights_scale",       "expert_weights_norm",
    "expert_gating_func",        "expert_group_count",         "expert_group_used_count",
    "nextn_predict_layers"};

constexpr int64_t kSigmoid = 2;           ///< of expert_gating_func
constexpr double kLogFactor = 0.1;        ///< of mscale_all_dim in yarn_log_multiplier
constexpr double kLatentNormEps = 1e-6;   ///< Hugging Face's, whatever rms_norm_eps is
constexpr int64_t kLargestSize = 1 << 24; ///< of a head; more is a damaged file

/// Whether llama.cpp takes a model for one whose queries are not compressed, without reading the
/// key of their rank.
bool implies_plain_queries(int64_t layers, int64_t vocab) {
  return layers == 26 || layers == 27 || (layers == 48 && vocab == 128256);
}

void add_attention(const GgufStructure& s, const std::string& gguf, const std::string& hf,
                   GgufTensorList& list) {
  const GgufLatent& a = s.latent;
  const int64_t keys = a.key - a.rotary; // of a head, without positions
  if (a.q_rank > 0) {
    list.add(gguf + "attn_q_a", hf + "q_a_proj", {a.q_rank, s.hidden});
    list.add(gguf + "attn_q_a_norm", hf + "q_a_layernorm", {a.q_rank});
    list.add(gguf + "attn_q_b", hf + "q_b_proj", {s.heads * a.key, a.q_rank});
  } else {
    list.add(gguf + "attn_q", hf + "q_proj", {s.heads * a.key, s.hidden});
  }
  if (a.halves) list.rotate_last(s.heads, a.rotary);
  list.add(gguf + "attn_kv_a_mqa", hf + "kv_a_proj_with_mqa", {a.kv_rank + a.rotary, s.hidden});
  if (a.halves) list.rotate_last(1, a.rotary);
  list.add(gguf + "attn_kv_a_norm", hf + "kv_a_layernorm", {a.kv_rank});
  const std::vector<int64_t> kv_b = {s.heads * (keys + a.value), a.kv_rank};
  if (a.split) {
    list.add_head_rows(gguf + "attn_k_b", hf + "kv_b_proj", kv_b, s.heads, 0, keys, true);
    list.add_head_rows(gguf + "attn_v_b", hf + "kv_b_proj", kv_b, s.heads, keys, a.value, false);
  } else {
    list.add(gguf + "attn_kv_b", hf + "kv_b_proj", kv_b);
  }
  list.add(gguf + "attn_output", hf + "o_proj", {s.hidden, s.heads * a.value});
}

std::vector<GgufMapEntry> deepseek_map(const GgufStructure& s) {
  GgufTensorList list;
  list.add("token_embd", "model.embed_tokens", {s.vocab, s.hidden});
  for (int64_t i = 0; i < s.layers; ++i) {
    const std::string gguf = fmt::format("blk.{}.", i), hf = fmt::format("model.layers.{}.", i);
    list.add(gguf + "attn_norm", hf + "input_layernorm", {s.hidden});
    add_attention(s, gguf, hf + "self_attn.", list);
    list.add(gguf + "ffn_norm", hf + "post_attention_layernorm", {s.hidden});
    if (i >= s.dense) {
      add_gguf_experts(s, gguf, hf + "mlp.", list);
      continue;
    }
    list.add(gguf + "ffn_gate", hf + "mlp.gate_proj", {s.ffn, s.hidden});
    list.add(gguf + "ffn_up", hf + "mlp.up_proj", {s.ffn, s.hidden});
    list.add(gguf + "ffn_down", hf + "mlp.down_proj", {s.hidden, s.ffn});
  }
  list.add("output_norm", "model.norm", {s.hidden});
  if (s.untied) list.add("output", "lm_head", {s.vocab, s.hidden});
  return list.take();
}

/// 0 where the key is missing.
int64_t count_of(GgufKeyReader& in, std::string_view key) {
  const int64_t count = in.keys().find_integer(in.full(key)).value_or(0);
  return count == 0 ? 0 : in.size(key);
}

int64_t read_head_size(GgufKeyReader& in, std::string_view key) {
  const int64_t size = in.size(key);
  if (size <= kLargestSize) return size;
  in.problem(fmt::format("{}={} is not valid", in.full(key), size));
  return 1;
}

/// Old files lack the lengths of decompressed heads, and have kv_b_proj whole.
void read_latent(GgufKeyReader& in, GgufStructure& s) {
  GgufLatent& a = s.latent;
  a.split = in.has("attention.key_length_mla") && in.has("attention.value_length_mla");
  a.q_rank = count_of(in, "attention.q_lora_rank");
  a.kv_rank = read_head_size(in, "attention.kv_lora_rank");
  a.key = read_head_size(in, a.split ? "attention.key_length_mla" : "attention.key_length");
  a.value = read_head_size(in, a.split ? "attention.value_length_mla" : "attention.value_length");
  a.rotary = read_head_size(in, "rope.dimension_count");
  if (a.rotary < a.key && a.rotary % 2 == 0) return;
  in.problem(fmt::format("{}={} with a head size of {} is not supported",
                         in.full("rope.dimension_count"), a.rotary, a.key));
  a.rotary = 0;
}

/// llama.cpp scales scores by the square of 0.1 mscale_all_dim ln(factor) + 1, and rotary positions
/// not at all, as if mscale were equal to mscale_all_dim.
Json read_yarn(GgufKeyReader& in) {
  const std::string type = in.text("rope.scaling.type").value_or("none");
  for (const char* key : {"attn_factor", "yarn_attn_factor", "yarn_ext_factor"})
    in.refuse_unless(std::string("rope.scaling.") + key, 1);
  const double factor =
      in.number("rope.scaling.factor").value_or(in.number("rope.scale_linear").value_or(1.0));
  if (type == "none" && !in.has("rope.scale_linear")) return nullptr;
  if (type != "yarn") {
    if (factor != 1 && factor != 0)
      in.problem(fmt::format("{}={} is not supported", in.full("rope.scaling.type"),
                             type == "none" ? "linear" : excerpt(type)));
    return nullptr;
  }
  const double multiplier = in.number("rope.scaling.yarn_log_multiplier").value_or(0.0);
  if (multiplier == 0)
    in.problem(fmt::format("{} without {} is not supported", in.full("rope.scaling.type=yarn"),
                           in.full("rope.scaling.yarn_log_multiplier")));
  const double mscale = as_written(static_cast<float>(multiplier / kLogFactor));
  Json rope = {
      {"rope_type", "yarn"}, {"factor", factor}, {"mscale", mscale}, {"mscale_all_dim", mscale}};
  if (const auto original = in.find_size("rope.scaling.original_context_length"))
    rope["original_max_position_embeddings"] = *original;
  for (const char* key : {"beta_fast", "beta_slow"})
    if (const auto beta = in.number(std::string("rope.scaling.yarn_") + key)) rope[key] = *beta;
  if (rope.value("beta_fast", 32.0) != 32 || rope.value("beta_slow", 1.0) != 1)
    log::shared_warning(
        "{}: llama.cpp ignores {} and yarn_beta_slow for the architecture deepseek2; "
        "pentatron uses them, as transformers",
        in.keys().origin(), in.full("rope.scaling.yarn_beta_fast"));
  return rope;
}

/// Files from a config.json without scoring_func do not say it; selection biases only go with it.
void check_scores(GgufKeyReader& in, const GgufStructure& s) {
  const std::string key = in.full("expert_gating_func");
  const int64_t given = in.keys().find_integer(key).value_or(0);
  const bool biased = in.has_tensor(fmt::format("blk.{}.exp_probs_b.bias", s.dense));
  if (given == kSigmoid) return;
  if (given == 0 && biased)
    return log::shared_warning(
        "{} has no {}: its experts are selected by sigmoid scores, as in all "
        "models with exp_probs_b.bias; llama.cpp takes a softmax, but for "
        "some sizes",
        in.keys().origin(), key);
  in.problem(given == 0 ? fmt::format("there is no {}, so scores are a softmax, as in DeepSeek-V2; "
                                      "only sigmoid scores are supported",
                                      key)
                        : fmt::format("{}={} is not supported, only {}, which is a sigmoid", key,
                                      given, kSigmoid));
}

void read_deepseek_experts(GgufKeyReader& in, GgufStructure& s, Json& hf) {
  s.dense = in.keys().find_integer(in.full("leading_dense_block_count")).value_or(0);
  if (s.dense < 0) in.problem(fmt::format("leading_dense_block_count={} is not valid", s.dense));
  hf["first_k_dense_replace"] = s.dense;
  if (s.dense >= s.layers && count_of(in, "expert_count") == 0) return;
  s.experts = in.size("expert_count");
  s.expert_ffn = in.size("expert_feed_forward_length");
  const int64_t shared = in.size("expert_shared_count");
  s.shared_ffn = s.expert_ffn * shared;
  const double scale = in.number("expert_weights_scale").value_or(0.0);
  const int64_t groups = count_of(in, "expert_group_count");
  hf["n_routed_experts"] = s.experts;
  hf["moe_intermediate_size"] = s.expert_ffn;
  hf["n_shared_experts"] = shared;
  hf["num_experts_per_tok"] = in.size("expert_used_count");
  hf["routed_scaling_factor"] = scale == 0 ? 1.0 : scale;
  hf["norm_topk_prob"] = in.keys().find_bool(in.full("expert_weights_norm")).value_or(false);
  hf["n_group"] = groups <= 1 ? 1 : groups;
  hf["topk_group"] = groups <= 1 ? 1 : in.size("expert_group_used_count");
  hf["scoring_func"] = "sigmoid";
  hf["topk_method"] = "noaux_tc";
  if (s.dense < s.layers) check_scores(in, s);
}

void read_deepseek(GgufKeyReader& in, GgufConfig& out) {
  GgufStructure& s = out.structure;
  Json& hf = out.hf;
  in.refuse_unless("nextn_predict_layers", 0);
  s.layers = in.size("block_count");
  s.hidden = in.size("embedding_length");
  s.heads = in.size("attention.head_count");
  s.ffn = in.size("feed_forward_length");
  read_latent(in, s);
  put_sizes(*s.family, s, hf);
  hf["num_key_value_heads"] = s.heads;
  hf["head_dim"] = s.latent.rotary;
  hf["q_lora_rank"] = s.latent.q_rank > 0 ? Json(s.latent.q_rank) : Json();
  hf["kv_lora_rank"] = s.latent.kv_rank;
  hf["qk_nope_head_dim"] = s.latent.key - s.latent.rotary;
  hf["qk_rope_head_dim"] = s.latent.rotary;
  hf["v_head_dim"] = s.latent.value;
  hf["rope_interleave"] = true;
  hf["attention_bias"] = false;
  hf["hidden_act"] = "silu";
  const double eps = in.needed_number("attention.layer_norm_rms_epsilon");
  hf["rms_norm_eps"] = eps;
  if (std::fabs(eps - kLatentNormEps) > 1e-3 * kLatentNormEps)
    log::shared_warning(
        "{}: llama.cpp uses {}={} for the norms of latents too; pentatron uses {}, as "
        "transformers",
        in.keys().origin(), in.full("attention.layer_norm_rms_epsilon"),
        as_written(static_cast<float>(eps)), kLatentNormEps);
  hf["max_position_embeddings"] = in.size("context_length");
  hf["num_nextn_predict_layers"] = 0;
  // Read by transformers 4 and 5; rope_parameters only by 5.
  hf["rope_theta"] = in.number("rope.freq_base").value_or(10000.0);
  hf["rope_scaling"] = read_yarn(in);
  read_deepseek_experts(in, s, hf);
  refuse_window(in);
}

void refuse_deepseek(const GgufKeyWriter& w, const std::string& what) {
  w.problem(fmt::format("{} cannot be stored in a GGUF file of {}", what,
                        w.structure().family->architecture));
}

void put_latent(GgufKeyWriter& w) {
  const GgufStructure& s = w.structure();
  GgufLatent& a = w.structure().latent;
  const bool compressed = !w.json().contains("q_lora_rank") || w.has("q_lora_rank");
  const bool implied = implies_plain_queries(s.layers, s.vocab);
  if (compressed) a.q_rank = w.size("q_lora_rank", 1536);
  if (compressed && implied)
    refuse_deepseek(w, fmt::format("q_lora_rank={} with num_hidden_layers={} and vocab_size={}",
                                   a.q_rank, s.layers, s.vocab));
  if (!implied) w.put("attention.q_lora_rank", a.q_rank); // llama.cpp needs it, also as 0
  a.kv_rank = w.size("kv_lora_rank", 512);
  a.rotary = w.size("qk_rope_head_dim", 64);
  a.key = w.size("qk_nope_head_dim", 128) + a.rotary;
  a.value = w.size("v_head_dim", 128);
  a.halves = !(w.json().contains("rope_interleave") ? w.get<bool>("rope_interleave", false) : true);
  if (a.rotary % 2 != 0) w.problem(fmt::format("qk_rope_head_dim={} is odd", a.rotary));
  w.put("attention.kv_lora_rank", a.kv_rank);
  w.put("attention.key_length", a.kv_rank + a.rotary);
  w.put("attention.value_length", a.kv_rank);
  w.put("attention.key_length_mla", a.key);
  w.put("attention.value_length_mla", a.value);
  w.put("rope.dimension_count", a.rotary);
}

/// See read_yarn().
void put_yarn_scaling(GgufKeyWriter& w, const Json& rope, int64_t positions) {
  const auto number = [&](const char* key, double otherwise) {
    return json_get_or<double>(rope, key, otherwise, GgufKeyWriter::kWhere);
  };
  const auto factor = json_get<double>(rope, "factor", GgufKeyWriter::kWhere);
  const double all = number("mscale_all_dim", 0), mscale = number("mscale", 0);
  const auto scale = [&](double m) { return 0.1 * m * std::log(factor) + 1; };
  const double of_positions =
      number("attention_factor", mscale != 0 && all != 0 ? scale(mscale) / scale(all) : scale(1));
  if (factor < 1) refuse_deepseek(w, fmt::format("rope_parameters.factor={}", factor));
  if (all == 0)
    refuse_deepseek(w, "rope_parameters.mscale_all_dim=0 with YaRN");
  else if (std::fabs(of_positions - 1) > 1e-6 && rope.contains("attention_factor"))
    refuse_deepseek(w, fmt::format("rope_parameters.attention_factor={}", of_positions));
  else if (std::fabs(of_positions - 1) > 1e-6)
    refuse_deepseek(w,
                    fmt::format("rope_parameters.mscale={} with mscale_all_dim={}", mscale, all));
  if (!json_get_or<bool>(rope, "truncate", true, GgufKeyWriter::kWhere))
    refuse_deepseek(w, "rope_parameters.truncate=false");
  w.put("rope.scaling.type", "yarn");
  w.put("rope.scaling.factor", factor);
  w.put("rope.scaling.original_context_length",
        json_get_or<int64_t>(rope, "original_max_position_embeddings", positions,
                             GgufKeyWriter::kWhere));
  for (const auto& [key, implied] : {std::pair("beta_fast", 32.0), std::pair("beta_slow", 1.0)}) {
    if (!rope.contains(key)) continue;
    const double beta = number(key, implied);
    if (beta != implied)
      log::warning("llama.cpp ignores {}={} for the architecture deepseek2: it uses {}", key, beta,
                   implied);
    w.put(fmt::format("rope.scaling.yarn_{}", key).c_str(), beta);
  }
  w.put("rope.scaling.yarn_log_multiplier", kLogFactor * all);
}

void put_rope_scaling(GgufKeyWriter& w, int64_t positions) {
  const Json rope = rope_of(w);
  const auto type = json_get<std::string>(rope, "rope_type", GgufKeyWriter::kWhere);
  if (type == "yarn")
    put_yarn_scaling(w, rope, positions);
  else if (type != "default")
    refuse_deepseek(w, fmt::format("rope_type={}", excerpt(type)));
  w.put("rope.freq_base", json_get<double>(rope, "rope_theta", GgufKeyWriter::kWhere));
}

void put_groups(GgufKeyWriter& w) {
  int64_t groups = w.size("n_group", 8), open = w.size("topk_group", 4);
  if (open >= groups) groups = open = 1; // all of them, which llama.cpp takes only so
  w.put("expert_group_count", groups);
  w.put("expert_group_used_count", open);
}

void put_deepseek_experts(GgufKeyWriter& w) {
  GgufStructure& s = w.structure();
  s.dense = w.get<int64_t>("first_k_dense_replace", 3);
  if (s.dense < 0 || s.dense > std::numeric_limits<int32_t>::max())
    w.problem(fmt::format("first_k_dense_replace={} is not valid", s.dense));
  w.put("leading_dense_block_count", s.dense);
  const char* const count = w.has("n_routed_experts") ? "n_routed_experts" : "num_local_experts";
  const bool any = s.dense < s.layers || w.has(count);
  s.expert_ffn = w.size("moe_intermediate_size", any ? 2048 : s.ffn);
  w.put("expert_feed_forward_length", s.expert_ffn);
  const int64_t shared = any ? w.size("n_shared_experts", 1) : 0;
  w.put("expert_shared_count", shared); // llama.cpp needs both, also without experts
  if (!any) return;
  s.shared_ffn = s.expert_ffn * shared;
  s.experts = w.size(count, 256);
  w.put("expert_count", s.experts);
  w.put("expert_used_count", w.size("num_experts_per_tok", 8));
  put_groups(w);
  const auto scale = w.get<double>("routed_scaling_factor", 2.5);
  if (scale == 0) refuse_deepseek(w, "routed_scaling_factor=0"); // means none
  w.put("expert_weights_scale", scale);
  const bool normed =
      w.json().contains("norm_topk_prob") ? w.get<bool>("norm_topk_prob", false) : true;
  if (normed) w.put("expert_weights_norm", true);
  w.put("expert_gating_func", kSigmoid);
  for (const auto& [key, implied] :
       {std::pair("scoring_func", "sigmoid"), std::pair("topk_method", "noaux_tc")})
    if (const auto given = w.get<std::string>(key, implied); given != implied)
      refuse_deepseek(w, fmt::format("{}={}", key, excerpt(given)));
  require_number(w, "moe_layer_freq", w.get<double>("moe_layer_freq", 1), 1);
}

void write_deepseek(GgufKeyWriter& w) {
  GgufStructure& s = w.structure();
  s.layers = w.size("num_hidden_layers");
  s.hidden = w.size("hidden_size");
  s.heads = w.size("num_attention_heads");
  s.ffn = w.size("intermediate_size");
  s.untied = !w.get<bool>("tie_word_embeddings", false);
  if (w.size("num_key_value_heads", s.heads) != s.heads)
    refuse_deepseek(w, fmt::format("num_key_value_heads={} with num_attention_heads={}",
                                   w.size("num_key_value_heads"), s.heads));
  if (w.get<bool>("attention_bias", false)) refuse_deepseek(w, "attention_bias=true");
  if (const auto act = w.get<std::string>("hidden_act", "silu"); act != "silu" && act != "swish")
    refuse_deepseek(w, "hidden_act=" + excerpt(act));
  const int64_t positions = w.size("max_position_embeddings", 4096);
  const auto epsilon = w.get<double>("rms_norm_eps", kLatentNormEps);
  if (epsilon != kLatentNormEps)
    log::warning("llama.cpp normalizes the latents of deepseek2 with rms_norm_eps={}, transformers "
                 "with {}",
                 epsilon, kLatentNormEps);
  w.put("block_count", s.layers);
  w.put("context_length", positions);
  w.put("embedding_length", s.hidden);
  w.put("feed_forward_length", s.ffn);
  w.put("attention.head_count", s.heads);
  w.put("attention.head_count_kv", int64_t{1}); // of the latent, which is what is cached
  w.put("attention.layer_norm_rms_epsilon", epsilon);
  put_latent(w);
  put_rope_scaling(w, positions);
  put_deepseek_experts(w);
}

} // namespace

GgufFamily deepseek_v3_gguf() {
  return {.architecture = "deepseek2",
          .model_type = "deepseek_v3",
          .model_class = "DeepseekV3ForCausalLM",
          .decoder = {.experts = {.selection_bias = true, .shared_gate = false}},
          .keys = kDeepSeekKeys,
          .map = deepseek_map,
          .read = read_deepseek,
          .write = write_deepseek};
}

} // namespace pentatron::checkpoint
