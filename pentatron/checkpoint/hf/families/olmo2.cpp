/// OLMo 2: norms at the output of each block, and of all heads of q and of k together.
/// Source: OLMo Team 2024 (arXiv:2501.00656).
#include "pentatron/checkpoint/hf/families/all.h"
#include "pentatron/checkpoint/hf/families/decoder.h"

namespace pentatron::checkpoint {

namespace {

models::ModelConfig read_olmo2(const ConfigReader& in) {
  models::ModelConfig c = read_decoder(in, {.norm_eps = 1e-5});
  c.add_qkv_bias = c.add_attention_proj_bias = in.get<bool>("attention_bias", false);
  c.norm_placement = models::NormPlacement::kOutput;
  c.qk_layernorm = true;
  c.qk_layernorm_scope = models::QkNormScope::kProjection;
  read_rope(in, {}, c);
  return c;
}

Json write_olmo2(const models::ModelConfig& c) {
  Json json = write_decoder(c);
  json["attention_bias"] = c.add_qkv_bias && c.add_attention_proj_bias;
  write_rope(c, {}, json);
  return json;
}

void name_olmo2(const models::ModelConfig& c, TensorNames& out) {
  name_decoder(c,
               {.norms = {{"post_attention_layernorm", "attention_output_norm"},
                          {"post_feedforward_layernorm", "mlp_output_norm"}}},
               out);
}

} // namespace

Family olmo2_family() {
  return {
      .model_type = "olmo2",
      .architecture = [](const models::ModelConfig&) -> std::string { return "Olmo2ForCausalLM"; },
      .read = read_olmo2,
      .write = write_olmo2,
      .names = name_olmo2,
      .padding_token = 1};
}

} // namespace pentatron::checkpoint
