/// Qwen2 and Qwen2.5 (Yang et al. 2024, arXiv:2407.10671): Llama with biases of q, k and v, and
/// sliding windows in some layers. Qwen3 (arXiv:2505.09388): norms of every head's q and k instead.
#include "pentatron/checkpoint/hf/families/all.h"
#include "pentatron/checkpoint/hf/families/decoder.h"

namespace pentatron::checkpoint {

namespace {

models::ModelConfig read_qwen(const ConfigReader& in, const DecoderDefaults& defaults = {
                                                          .kv_heads = 32, .max_positions = 32768}) {
  models::ModelConfig c = read_decoder(in, defaults);
  read_rope(in, {}, c);
  read_layer_windows(in, WindowRule::kFromMaxWindowLayers, c);
  return c;
}

models::ModelConfig read_qwen2(const ConfigReader& in) {
  models::ModelConfig c = read_qwen(in);
  c.add_qkv_bias = true;
  return c;
}

models::ModelConfig read_qwen3(const ConfigReader& in) {
  models::ModelConfig c = read_qwen(in, {.head_size = 128, .kv_heads = 32, .max_positions = 32768});
  c.add_qkv_bias = c.add_attention_proj_bias = in.get<bool>("attention_bias", false);
  c.qk_layernorm = true;
  return c;
}

Json write_qwen2(const models::ModelConfig& c) {
  Json json = write_decoder(c);
  write_rope(c, {}, json);
  write_layer_windows(c, json);
  return json;
}

Json write_qwen3(const models::ModelConfig& c) {
  Json json = write_qwen2(c);
  json["attention_bias"] = c.add_qkv_bias && c.add_attention_proj_bias;
  return json;
}

} // namespace

Family qwen2_family() {
  return {
      .model_type = "qwen2",
      .architecture = [](const models::ModelConfig&) -> std::string { return "Qwen2ForCausalLM"; },
      .read = read_qwen2,
      .write = write_qwen2,
      .names = name_llama,
      .padding_token = -1};
}

Family qwen3_family() {
  return {
      .model_type = "qwen3",
      .architecture = [](const models::ModelConfig&) -> std::string { return "Qwen3ForCausalLM"; },
      .read = read_qwen3,
      .write = write_qwen3,
      .names = name_llama,
      .padding_token = -1};
}

} // namespace pentatron::checkpoint
