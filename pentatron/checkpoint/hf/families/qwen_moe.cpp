/// Qwen's mixtures of experts. Qwen1.5-MoE and Qwen2 (arXiv:2407.10671): shared experts with a
/// gate. Qwen3 (arXiv:2505.09388): norms of every head's q and k, no shared experts.
#include "pentatron/checkpoint/hf/families/all.h"
#include "pentatron/checkpoint/hf/families/decoder.h"

namespace pentatron::checkpoint {

namespace {

models::ModelConfig read_qwen2_moe(const ConfigReader& in) {
  models::ModelConfig c = read_decoder(in, {.kv_heads = 16, .max_positions = 32768});
  read_rope(in, {}, c);
  read_layer_windows(in, WindowRule::kEvenBelowMaxWindowLayers, c);
  read_softmax_experts(in, 60, 4, c);
  read_sparse_layers(in, c);
  c.moe_ffn_hidden_size = in.get<int64_t>("moe_intermediate_size", 1408);
  c.moe_shared_expert_intermediate_size = in.get<int64_t>("shared_expert_intermediate_size", 5632);
  c.moe_shared_expert_gate = true;
  c.add_qkv_bias = in.get<bool>("qkv_bias", true);
  return c;
}

Json write_moe(const models::ModelConfig& c) {
  Json json = write_decoder(c);
  write_rope(c, {}, json);
  if (!c.num_moe_experts) return json;
  write_softmax_experts(c, json);
  write_sparse_layers(c, json);
  json["moe_intermediate_size"] = c.expert_ffn_size();
  return json;
}

Json write_qwen2_moe(const models::ModelConfig& c) {
  Json json = write_moe(c);
  write_layer_windows(c, json);
  json["shared_expert_intermediate_size"] = c.moe_shared_expert_intermediate_size.value_or(1);
  json["qkv_bias"] = c.add_qkv_bias;
  return json;
}

models::ModelConfig read_qwen3_moe(const ConfigReader& in) {
  models::ModelConfig c = read_decoder(in, {.kv_heads = 4, .max_positions = 32768});
  read_rope(in, {}, c);
  if (in.get<bool>("use_sliding_window", false)) c.window_size = read_window(in, 4096);
  read_softmax_experts(in, 128, 8, c);
  read_sparse_layers(in, c);
  c.moe_ffn_hidden_size = in.get<int64_t>("moe_intermediate_size", 768);
  c.add_qkv_bias = c.add_attention_proj_bias = in.get<bool>("attention_bias", false);
  c.qk_layernorm = true;
  return c;
}

Json write_qwen3_moe(const models::ModelConfig& c) {
  Json json = write_moe(c);
  json["use_sliding_window"] = c.window_size.has_value();
  json["sliding_window"] = c.window_size ? Json(*c.window_size) : Json();
  json["attention_bias"] = c.add_qkv_bias && c.add_attention_proj_bias;
  return json;
}

} // namespace

Family qwen2_moe_family() {
  return {.model_type = "qwen2_moe",
          .architecture = [](const models::ModelConfig&) -> std::string {
            return "Qwen2MoeForCausalLM";
          },
          .read = read_qwen2_moe,
          .write = write_qwen2_moe,
          .names = name_llama,
          .padding_token = -1};
}

Family qwen3_moe_family() {
  return {
      .model_type = "qwen3_moe",
      .architecture = [](const models::ModelConfig&) -> std::string {
        return "Qwen3MoeForCausalLM";
      },
      .read = read_qwen3_moe,
      .write = write_qwen3_moe,
      .names = [](const models::ModelConfig& c,
                  TensorNames& out) { name_decoder(c, {.experts = {.router_first = false}}, out); },
      .padding_token = -1};
}

} // namespace pentatron::checkpoint
