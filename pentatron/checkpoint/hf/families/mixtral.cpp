/// Mixtral: Mistral with a mixture of experts. Source: Jiang et al. 2024 (arXiv:2401.04088).
#include "pentatron/checkpoint/hf/families/all.h"
#include "pentatron/checkpoint/hf/families/decoder.h"

namespace pentatron::checkpoint {

namespace {

models::ModelConfig read_mixtral(const ConfigReader& in) {
  models::ModelConfig c =
      read_decoder(in, {.norm_eps = 1e-5, .kv_heads = 8, .max_positions = 131072});
  if (in.get<double>("router_jitter_noise", 0) != 0) in.refuse("router_jitter_noise other than 0");
  read_rope(in, {.theta = 1e6}, c);
  c.window_size = read_window(in, 0).value_or(0) > 0 ? read_window(in, 0) : std::nullopt;
  c.num_moe_experts = in.get<int64_t>("num_local_experts", in.get<int64_t>("num_experts", 8));
  c.moe_router_topk = in.get<int64_t>("num_experts_per_tok", 2);
  return c;
}

Json write_mixtral(const models::ModelConfig& c) {
  Json json = write_decoder(c);
  json["intermediate_size"] = c.expert_ffn_size(); // no layer has an MLP
  json["sliding_window"] = c.window_size ? Json(*c.window_size) : Json();
  json["num_local_experts"] = c.num_moe_experts ? Json(*c.num_moe_experts) : Json(1);
  json["num_experts_per_tok"] = c.moe_router_topk;
  json["output_router_logits"] = false;
  write_rope(c, {}, json);
  return json;
}

void name_mixtral(const models::ModelConfig& c, TensorNames& out) {
  name_decoder(
      c, {.experts = {.block = "block_sparse_moe.", .gate = "w1", .up = "w3", .down = "w2"}}, out);
}

} // namespace

Family mixtral_family() {
  return {.model_type = "mixtral",
          .architecture = [](const models::ModelConfig&) -> std::string {
            return "MixtralForCausalLM";
          },
          .read = read_mixtral,
          .write = write_mixtral,
          .names = name_mixtral,
          .padding_token = -1};
}

} // namespace pentatron::checkpoint
