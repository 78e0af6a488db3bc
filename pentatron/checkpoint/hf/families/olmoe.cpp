/// OLMoE: OLMo with a mixture of experts, norms of q and k over the whole projection. Source:
/// Muennighoff et al. 2024 (arXiv:2409.02060).
#include "pentatron/checkpoint/hf/families/all.h"
#include "pentatron/checkpoint/hf/families/decoder.h"

namespace pentatron::checkpoint {

namespace {

models::ModelConfig read_olmoe(const ConfigReader& in) {
  models::ModelConfig c = read_decoder(in, {.norm_eps = 1e-5, .max_positions = 4096});
  if (in.find<double>("clip_qkv")) in.refuse("clip_qkv");
  read_rope(in, {}, c);
  read_softmax_experts(in, 64, 8, c);
  c.add_qkv_bias = c.add_attention_proj_bias = in.get<bool>("attention_bias", false);
  c.qk_layernorm = true;
  c.qk_layernorm_scope = models::QkNormScope::kProjection;
  return c;
}

Json write_olmoe(const models::ModelConfig& c) {
  Json json = write_decoder(c);
  json["intermediate_size"] = c.expert_ffn_size(); // no layer has an MLP
  json["attention_bias"] = c.add_qkv_bias && c.add_attention_proj_bias;
  json["clip_qkv"] = Json();
  if (c.num_moe_experts) write_softmax_experts(c, json);
  write_rope(c, {}, json);
  return json;
}

/// The norm of q has the hidden size in transformers.
std::string other_width(const models::ModelConfig& c) {
  if (c.num_attention_heads * c.head_size() == c.hidden_size) return {};
  return fmt::format("num_attention_heads={} times the head size {} is not hidden_size={}",
                     c.num_attention_heads, c.head_size(), c.hidden_size);
}

} // namespace

Family olmoe_family() {
  return {
      .model_type = "olmoe",
      .architecture = [](const models::ModelConfig&) -> std::string { return "OlmoeForCausalLM"; },
      .read = read_olmoe,
      .write = write_olmoe,
      .names = name_llama,
      .padding_token = 1,
      .obstacle = other_width};
}

} // namespace pentatron::checkpoint
