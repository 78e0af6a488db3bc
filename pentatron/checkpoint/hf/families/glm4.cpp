/// GLM-4: norms at the input and the output of each block, rotary positions on half of each head.
/// Source: GLM Team 2024 (arXiv:2406.12793).
#include "pentatron/checkpoint/hf/families/all.h"
#include "pentatron/checkpoint/hf/families/decoder.h"

namespace pentatron::checkpoint {

namespace {

constexpr RopeRule kGlm4Rope = {.partial = true, .share = 0.5};

models::ModelConfig read_glm4(const ConfigReader& in) {
  models::ModelConfig c = read_decoder(
      in, {.norm_eps = 1.5625e-7, .head_size = 128, .kv_heads = 2, .max_positions = 131072});
  c.add_qkv_bias = in.get<bool>("attention_bias", true);
  c.norm_placement = models::NormPlacement::kPreAndOutput;
  c.rotary_interleaved = true;
  read_rope(in, kGlm4Rope, c);
  return c;
}

Json write_glm4(const models::ModelConfig& c) {
  Json json = write_decoder(c);
  json["attention_bias"] = c.add_qkv_bias;
  write_rope(c, kGlm4Rope, json);
  return json;
}

void name_glm4(const models::ModelConfig& c, TensorNames& out) {
  name_decoder(c,
               {.fused_gate_up = true,
                .norms = {{"input_layernorm", "attention_norm"},
                          {"post_attention_layernorm", "mlp_norm"},
                          {"post_self_attn_layernorm", "attention_output_norm"},
                          {"post_mlp_layernorm", "mlp_output_norm"}}},
               out);
}

} // namespace

Family glm4_family() {
  return {
      .model_type = "glm4",
      .architecture = [](const models::ModelConfig&) -> std::string { return "Glm4ForCausalLM"; },
      .read = read_glm4,
      .write = write_glm4,
      .names = name_glm4,
      .padding_token = 151329};
}

} // namespace pentatron::checkpoint
