/// Gemma 2 (arXiv:2408.00118) and the text models of Gemma 3 (arXiv:2503.19786): norms at the input
/// and the output of blocks, scaled embeddings, windows in most layers; Gemma 2 with capped scores
/// and logits.
#include "pentatron/checkpoint/hf/families/gemma.h"

#include <cmath>

#include <fmt/format.h>

#include "pentatron/checkpoint/hf/families/all.h"

namespace pentatron::checkpoint {

namespace {

Json number_or_null(const std::optional<double>& x) {
  return x ? Json(*x) : Json();
}

} // namespace

models::ModelConfig read_gemma(const ConfigReader& in, int64_t full_every, int64_t max_positions) {
  const auto is_null = [&](const char* key) {
    return in.json().contains(key) && in.json()[key].is_null();
  };
  for (const char* key : {"query_pre_attn_scalar", "hidden_activation"})
    if (is_null(key)) in.refuse(fmt::format("{}=null", key)); // transformers needs them
  models::ModelConfig c =
      read_decoder(in, {.head_size = 256,
                        .kv_heads = 4,
                        .activation = {"hidden_activation", "gelu_pytorch_tanh"},
                        .tied = true,
                        .max_positions = max_positions});
  const bool bias = in.get<bool>("attention_bias", false);
  c.add_qkv_bias = c.add_attention_proj_bias = bias;
  c.norm_placement = models::NormPlacement::kPreAndOutput;
  c.layernorm_zero_centered_gamma = true;
  c.embedding_multiplier = std::sqrt(static_cast<double>(c.hidden_size));
  c.softmax_scale = 1 / std::sqrt(in.get<double>("query_pre_attn_scalar", 256));
  c.final_logit_softcapping = in.find<double>("final_logit_softcapping");
  if (in.get<bool>("use_bidirectional_attention", false))
    in.refuse("use_bidirectional_attention=true");
  const bool no_window = is_null("sliding_window");
  c.window_size = no_window ? 1 : read_window(in, 4096);
  read_layer_types(in, full_every, c);
  if (no_window && c.window_size) in.refuse("sliding_window=null with layers of sliding_attention");
  return c;
}

Json write_gemma(const models::ModelConfig& c) {
  Json json = write_decoder(c);
  json["hidden_activation"] = json["hidden_act"];
  json.erase("hidden_act");
  json["attention_bias"] = c.add_qkv_bias && c.add_attention_proj_bias;
  json["final_logit_softcapping"] = number_or_null(c.final_logit_softcapping);
  const double head = static_cast<double>(c.head_size());
  const double scale = c.softmax_scale.value_or(1 / std::sqrt(head));
  json["query_pre_attn_scalar"] =
      std::llround(1 / (scale * scale)); // transformers wants an integer
  // transformers wants a window also where no layer has one.
  json["sliding_window"] = c.window_size.value_or(c.max_position_embeddings);
  write_layer_types(c, json);
  return json;
}

void name_gemma(const models::ModelConfig& c, TensorNames& out) {
  name_decoder(c,
               {.norms = {{"input_layernorm", "attention_norm"},
                          {"post_attention_layernorm", "attention_output_norm"},
                          {"pre_feedforward_layernorm", "mlp_norm"},
                          {"post_feedforward_layernorm", "mlp_output_norm"}}},
               out);
}

namespace {

models::ModelConfig read_gemma2(const ConfigReader& in) {
  models::ModelConfig c = read_gemma(in, 2, 8192);
  c.attn_logit_softcapping = in.find<double>("attn_logit_softcapping");
  if (!in.json().contains("attn_logit_softcapping")) c.attn_logit_softcapping = 50;
  if (!in.json().contains("final_logit_softcapping")) c.final_logit_softcapping = 30;
  read_rope(in, {}, c);
  return c;
}

Json write_gemma2(const models::ModelConfig& c) {
  Json json = write_gemma(c);
  json["attn_logit_softcapping"] = number_or_null(c.attn_logit_softcapping);
  write_rope(c, {}, json);
  return json;
}

} // namespace

Family gemma2_family() {
  return {
      .model_type = "gemma2",
      .architecture = [](const models::ModelConfig&) { return std::string("Gemma2ForCausalLM"); },
      .read = read_gemma2,
      .write = write_gemma2,
      .names = name_gemma,
      .padding_token = 0,
      .obstacle = uneven_heads};
}

} // namespace pentatron::checkpoint
