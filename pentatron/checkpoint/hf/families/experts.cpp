#include "pentatron/checkpoint/hf/families/experts.h"

#include <algorithm>

#include <fmt/ranges.h>

namespace pentatron::checkpoint {

using models::ModelConfig;

namespace {

/// Matrices are transposed, and gate and up alternate.
void name_stacked_experts(const std::string& block, const std::string& own, TensorNames& out) {
  out.add_module(block + "router", own + "router", true);
  out.add_alternating(block + "experts.gate_up_proj", own + "experts.fc1.weight", true);
  out.add_alternating(block + "experts.gate_up_proj_bias", own + "experts.fc1.bias");
  out.add(block + "experts.down_proj", own + "experts.fc2.weight", "", true);
  out.add(block + "experts.down_proj_bias", own + "experts.fc2.bias");
}

void name_shared(const ModelConfig& c, const std::string& shared, const std::string& block,
                 const std::string& own, TensorNames& out) {
  const std::string ours = own + "shared.";
  out.add_module(shared + "gate_proj", ours + "fc1", false, "gate");
  out.add_module(shared + "up_proj", ours + "fc1", false, "up");
  out.add_module(shared + "down_proj", ours + "fc2");
  if (c.moe_shared_expert_gate) out.add_module(block + "shared_expert_gate", own + "shared_gate");
}

/// The same for all families.
void name_stacks(const ModelConfig& c, const std::string& block, const std::string& own,
                 TensorNames& out) {
  out.add_module(block + "router", own + "router", c.moe_router_logit_bias);
  const std::string experts = block + "experts.";
  out.add_module(experts + "gate_proj", own + "experts.fc1", c.add_mlp_bias, "gate");
  out.add_module(experts + "up_proj", own + "experts.fc1", c.add_mlp_bias, "up");
  out.add_module(experts + "down_proj", own + "experts.fc2", c.add_mlp_bias);
  if (c.moe_router_enable_expert_bias)
    out.add(block + "router.expert_bias", own + "router.expert_bias");
  if (c.moe_shared_expert_intermediate_size)
    name_shared(c, block + "shared_expert.", block, own, out);
}

} // namespace

void name_experts(const ModelConfig& c, const ExpertNames& names, const std::string& hf,
                  const std::string& own, TensorNames& out) {
  if (out.kind() == HfNames::kStacks) return name_stacks(c, hf + "mlp.", own + "mlp.", out);
  if (names.stacked) return name_stacked_experts(hf + names.block, own + "mlp.", out);
  const bool files = out.kind() == HfNames::kFiles;
  const std::string block = hf + (files ? names.block : "mlp.");
  const std::string fc1 = own + "mlp.experts.fc1.weight", fc2 = own + "mlp.experts.fc2.weight";
  if (names.router_first) out.add_module(block + "gate", own + "mlp.router");
  if (!files) {
    out.add(block + "experts.gate_up_proj", fc1);
    out.add(block + "experts.down_proj", fc2);
  }
  for (int64_t e = 0; files && e < *c.num_moe_experts; ++e) {
    const std::string expert = fmt::format("{}experts.{}.", block, e);
    out.add_expert(expert + names.gate + ".weight", fc1, "gate", e);
    out.add_expert(expert + names.up + ".weight", fc1, "up", e);
    out.add_expert(expert + names.down + ".weight", fc2, "", e);
  }
  if (!names.router_first) out.add_module(block + "gate", own + "mlp.router");
  if (c.moe_router_enable_expert_bias)
    out.add(block + "gate.e_score_correction_bias", own + "mlp.router.expert_bias");
  if (!c.moe_shared_expert_intermediate_size) return;
  name_shared(c, block + names.shared, block, own + "mlp.", out);
}

void read_softmax_experts(const ConfigReader& in, int64_t experts, int64_t top_k, ModelConfig& c) {
  c.num_moe_experts = in.get<int64_t>("num_experts", in.get<int64_t>("num_local_experts", experts));
  if (*c.num_moe_experts < 1) in.refuse(fmt::format("num_experts={}", *c.num_moe_experts));
  c.moe_router_topk = in.get<int64_t>("num_experts_per_tok", top_k);
  // The softmax of the selected logits is that of all of them, divided by the sum of the selected.
  c.moe_router_pre_softmax = !in.get<bool>("norm_topk_prob", false);
}

void write_softmax_experts(const ModelConfig& c, Json& json) {
  json["num_experts"] = *c.num_moe_experts;
  json["num_experts_per_tok"] = c.moe_router_topk;
  json["norm_topk_prob"] = !c.moe_router_pre_softmax || c.moe_router_norm_topk_prob.value_or(false);
  json["output_router_logits"] = false;
}

void read_sparse_layers(const ConfigReader& in, ModelConfig& c) {
  const int64_t step = in.get<int64_t>("decoder_sparse_step", 1);
  if (step < 1) in.refuse(fmt::format("decoder_sparse_step={}", step));
  const auto dense = in.get<std::vector<int64_t>>("mlp_only_layers", {});
  std::vector<int> pattern;
  for (int64_t i = 0; i < c.num_layers; ++i)
    pattern.push_back((i + 1) % step == 0 && std::ranges::find(dense, i) == dense.end());
  if (std::ranges::find(pattern, 0) != pattern.end())
    c.moe_layer_freq = fmt::format("[{}]", fmt::join(pattern, ","));
}

void write_sparse_layers(const ModelConfig& c, Json& json) {
  Json dense = Json::array();
  for (int64_t i = 0; i < c.num_layers; ++i)
    if (!c.is_moe_layer(i)) dense.push_back(i);
  json["decoder_sparse_step"] = 1;
  json["mlp_only_layers"] = std::move(dense);
}

} // namespace pentatron::checkpoint
