/// GPT-OSS: attention sinks, windows in every second layer, biases everywhere, and a mixture of
/// experts whose gated activation is clamped. Source: OpenAI 2025 (arXiv:2508.10925).
#include "pentatron/checkpoint/hf/families/all.h"
#include "pentatron/checkpoint/hf/families/decoder.h"

namespace pentatron::checkpoint {

namespace {

constexpr double kAlpha = 1.702, kTheta = 150000;

/// What a file without rotary positions means.
void set_default_rope(models::ModelConfig& c) {
  c.position_embedding_type = models::PositionEmbedding::kRope;
  c.rope_scaling = {.type = models::RopeScalingType::kYarn,
                    .factor = 32,
                    .original_max_position_embeddings = 4096,
                    .beta_fast = 32,
                    .beta_slow = 1,
                    .truncate = false};
}

models::ModelConfig read_gpt_oss(const ConfigReader& in) {
  models::ModelConfig c =
      read_decoder(in, {.norm_eps = 1e-5, .head_size = 64, .kv_heads = 8, .max_positions = 131072});
  if (in.json().contains("head_dim") && in.json()["head_dim"].is_null()) c.kv_channels.reset();
  read_rope(in, {.theta = kTheta}, c);
  const auto has = [&](const char* key) {
    return in.json().contains(key) && !in.json()[key].is_null();
  };
  if (!has("rope_parameters") && !has("rope_scaling")) set_default_rope(c);
  c.window_size = read_window(in, 128);
  read_layer_types(in, 2, c);
  c.add_qkv_bias = c.add_attention_proj_bias = in.get<bool>("attention_bias", true);
  c.softmax_type = models::SoftmaxType::kLearnable;

  c.num_moe_experts = in.get<int64_t>("num_local_experts", in.get<int64_t>("num_experts", 128));
  c.moe_router_topk = in.get<int64_t>("num_experts_per_tok", 4);
  c.moe_router_logit_bias = c.add_mlp_bias = true;
  if (const double alpha = in.get<double>("swiglu_alpha", kAlpha); alpha != kAlpha)
    in.refuse(fmt::format("swiglu_alpha={}", alpha));
  c.activation_func = models::ActivationFunction::kQuickGeGlu; // whatever hidden_act says
  c.activation_func_clamp_value = in.get<double>("swiglu_limit", 7.0);
  c.glu_linear_offset = 1;

  if (has("quantization_config")) {
    const auto method = json_get_or<std::string>(in.json()["quantization_config"], "quant_method",
                                                 "", in.where() + " (quantization_config)");
    if (method != "mxfp4")
      in.refuse(fmt::format("quantization_config with quant_method={}", method));
  }
  return c;
}

Json write_gpt_oss(const models::ModelConfig& c) {
  Json json = write_decoder(c);
  json["hidden_act"] = "silu";
  json["intermediate_size"] = c.expert_ffn_size();      // no layer has an MLP
  json["sliding_window"] = c.window_size.value_or(128); // transformers needs one, used or not
  write_layer_types(c, json);
  json["attention_bias"] = c.add_qkv_bias && c.add_attention_proj_bias;
  json["num_local_experts"] = c.num_moe_experts.value_or(1);
  json["num_experts_per_tok"] = c.moe_router_topk;
  json["output_router_logits"] = false;
  json["swiglu_alpha"] = kAlpha;
  json["swiglu_limit"] = c.activation_func_clamp_value.value_or(7.0);
  write_rope(c, {}, json);
  return json;
}

} // namespace

Family gpt_oss_family() {
  return {
      .model_type = "gpt_oss",
      .architecture = [](const models::ModelConfig&) -> std::string { return "GptOssForCausalLM"; },
      .read = read_gpt_oss,
      .write = write_gpt_oss,
      .names = [](const models::ModelConfig& c,
                  TensorNames& out) { name_decoder(c, {.experts = {.stacked = true}}, out); },
      .padding_token = -1,
      .reads_quantised = true};
}

} // namespace pentatron::checkpoint
