/// DeepSeek-V3: multi-head latent attention, and experts that a sigmoid of the router selects by
/// groups. Source: DeepSeek-AI 2024 (arXiv:2412.19437).
#include <charconv>

#include "pentatron/checkpoint/hf/families/all.h"
#include "pentatron/checkpoint/hf/families/decoder.h"

namespace pentatron::checkpoint {

namespace {

using models::ModelConfig;

/// Of the latents, whatever rms_norm_eps is.
constexpr double kLatentNormEps = 1e-6;

/// null is false, as in transformers.
bool flag(const ConfigReader& in, const char* key, bool otherwise) {
  return in.json().contains(key) ? in.find<bool>(key).value_or(false) : otherwise;
}

/// transformers scales scores by mscale_all_dim with every rope_type, here it is YaRN's alone.
void refuse_idle_mscale(const ConfigReader& in, const ModelConfig& c) {
  using Type = models::RopeScalingType;
  if (c.rope_scaling.type == Type::kNone || c.rope_scaling.type == Type::kYarn) return;
  for (const char* key : {"rope_parameters", "rope_scaling"})
    if (in.json().contains(key) && in.json()[key].is_object() &&
        in.json()[key].contains("mscale_all_dim"))
      in.refuse("mscale_all_dim with a rope_type other than yarn");
}

void read_experts(const ConfigReader& in, ModelConfig& c) {
  const int64_t dense = in.get<int64_t>("first_k_dense_replace", 3);
  if (dense < 0) in.refuse(fmt::format("first_k_dense_replace={}", dense));
  // Keys of DeepSeek's own code; transformers knows no other values.
  if (const auto f = in.get<std::string>("scoring_func", "sigmoid"); f != "sigmoid")
    in.refuse("scoring_func=" + f);
  if (const auto m = in.get<std::string>("topk_method", "noaux_tc"); m != "noaux_tc")
    in.refuse("topk_method=" + m);
  if (const auto f = in.get<int64_t>("moe_layer_freq", 1); f != 1)
    in.refuse(fmt::format("moe_layer_freq={}", f));
  if (dense >= c.num_layers) return; // none has experts
  if (dense > 0) c.moe_layer_freq = fmt::format("[0]*{}+[1]*{}", dense, c.num_layers - dense);
  c.num_moe_experts =
      in.get<int64_t>("n_routed_experts", in.get<int64_t>("num_local_experts", 256));
  c.moe_ffn_hidden_size = in.get<int64_t>("moe_intermediate_size", 2048);
  const int64_t shared = in.get<int64_t>("n_shared_experts", 1);
  if (shared < 1) in.refuse(fmt::format("n_shared_experts={}", shared));
  c.moe_shared_expert_intermediate_size = shared * *c.moe_ffn_hidden_size;
  c.moe_router_topk = in.get<int64_t>("num_experts_per_tok", 8);
  c.moe_router_score_function = models::RouterScoreFunction::kSigmoid;
  c.moe_router_norm_topk_prob = flag(in, "norm_topk_prob", true);
  c.moe_router_topk_scaling_factor = in.get<double>("routed_scaling_factor", 2.5);
  c.moe_router_enable_expert_bias = true;
  c.moe_router_bias_update_rate = 0; // a model that was trained keeps its balance
  const int64_t groups = in.get<int64_t>("n_group", 8), open = in.get<int64_t>("topk_group", 4);
  if (groups == 1 && open == 1) return;
  c.moe_router_num_groups = groups;
  c.moe_router_group_topk = open;
  c.moe_router_group_score_topk = 2;
}

ModelConfig read_deepseek_v3(const ConfigReader& in) {
  ModelConfig c = read_decoder(in, {.kv_heads = 128, .max_positions = 4096});
  if (c.query_groups() != c.num_attention_heads)
    in.refuse(fmt::format("num_key_value_heads={} with num_attention_heads={}", c.query_groups(),
                          c.num_attention_heads));
  c.num_query_groups.reset();
  c.kv_channels.reset();
  read_rope(in, {}, c);
  refuse_idle_mscale(in, c);
  c.rotary_interleaved = flag(in, "rope_interleave", true);
  c.multi_latent_attention = true;
  c.q_lora_rank = in.json().contains("q_lora_rank") ? in.find<int64_t>("q_lora_rank") : 1536;
  c.kv_lora_rank = in.get<int64_t>("kv_lora_rank", 512);
  c.qk_head_dim = in.get<int64_t>("qk_nope_head_dim", 128);
  c.qk_pos_emb_head_dim = in.get<int64_t>("qk_rope_head_dim", 64);
  c.v_head_dim = in.get<int64_t>("v_head_dim", 128);
  c.latent_layernorm_epsilon = kLatentNormEps;
  c.add_qkv_bias = c.add_attention_proj_bias = in.get<bool>("attention_bias", false);
  read_experts(in, c);
  return c;
}

void write_experts(const ModelConfig& c, Json& json) {
  int64_t dense = 0;
  while (dense < c.num_layers && !c.is_moe_layer(dense)) ++dense;
  json["first_k_dense_replace"] = dense;
  if (!c.num_moe_experts) return;
  const int64_t ffn = c.expert_ffn_size(),
                shared = c.moe_shared_expert_intermediate_size.value_or(ffn);
  json["n_routed_experts"] = *c.num_moe_experts;
  json["moe_intermediate_size"] = ffn;
  json["n_shared_experts"] = std::max<int64_t>(1, shared / ffn);
  json["num_experts_per_tok"] = c.moe_router_topk;
  json["norm_topk_prob"] = c.normalizes_topk();
  json["routed_scaling_factor"] = c.moe_router_topk_scaling_factor;
  json["n_group"] = c.moe_router_num_groups.value_or(1);
  json["topk_group"] = c.moe_router_group_topk.value_or(1);
  json["scoring_func"] = "sigmoid";
  json["topk_method"] = "noaux_tc";
  json["output_router_logits"] = false;
}

Json write_deepseek_v3(const ModelConfig& c) {
  Json json = write_decoder(c);
  write_rope(c, {}, json);
  json["head_dim"] = c.qk_pos_emb_head_dim; // what rotary positions turn
  json["rope_interleave"] = c.rotary_interleaved;
  json["q_lora_rank"] = c.q_lora_rank ? Json(*c.q_lora_rank) : Json();
  json["kv_lora_rank"] = c.kv_lora_rank;
  json["qk_nope_head_dim"] = c.qk_head_dim;
  json["qk_rope_head_dim"] = c.qk_pos_emb_head_dim;
  json["qk_head_dim"] = c.head_size();
  json["v_head_dim"] = c.v_head_dim;
  json["attention_bias"] = c.add_qkv_bias && c.add_attention_proj_bias;
  write_experts(c, json);
  return json;
}

const DecoderLayout kLayout = {.experts = {.shared = "shared_experts.", .router_first = false}};

/// Layers behind the last one are those of multi-token prediction.
std::string prefix_of_depth(const ModelConfig& c, int64_t depth) {
  return fmt::format("model.layers.{}.", c.num_layers + depth);
}

void name_tensors(const ModelConfig& c, TensorNames& out) {
  name_decoder(c, kLayout, out);
  for (int64_t i = 0; i < c.mtp_num_layers; ++i) {
    const std::string hf = prefix_of_depth(c, i), own = fmt::format("mtp.{}.", i);
    for (const char* module : {"enorm", "hnorm", "eh_proj"})
      out.add_module(hf + module, own + module);
    name_layer(c, kLayout, c.num_layers - 1, hf, own + "layer.", out);
    out.add_module(hf + "shared_head.norm", own + "final_norm");
  }
}

void fit_depths(const TensorLookup& has, ModelConfig& c) {
  c.mtp_num_layers = 0;
  while (has(prefix_of_depth(c, c.mtp_num_layers) + "eh_proj.weight")) ++c.mtp_num_layers;
}

std::vector<std::pair<std::string, std::string>> copies(const ModelConfig& c) {
  const char* const words = "model.embed_tokens.weight";
  const char* const output = c.untie_embeddings_and_output_weights ? "lm_head.weight" : words;
  std::vector<std::pair<std::string, std::string>> all;
  for (int64_t i = 0; i < c.mtp_num_layers; ++i) {
    all.emplace_back(prefix_of_depth(c, i) + "embed_tokens.weight", words);
    all.emplace_back(prefix_of_depth(c, i) + "shared_head.head.weight", output);
  }
  return all;
}

std::string copied(std::string_view name, const ModelConfig& c) {
  for (auto& [copy, original] : copies(c))
    if (copy == name) return original;
  return {};
}

/// Of a layer that the model does not have.
bool is_of_later_layer(std::string_view name, const ModelConfig& c) {
  constexpr std::string_view prefix = "model.layers.";
  if (!name.starts_with(prefix)) return false;
  name.remove_prefix(prefix.size());
  int64_t layer = -1;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), layer);
  return error == std::errc() && end != name.data() + name.size() && *end == '.' &&
         layer >= c.num_layers + c.mtp_num_layers;
}

} // namespace

Family deepseek_v3_family() {
  return {.model_type = "deepseek_v3",
          .architecture = [](const ModelConfig&) -> std::string { return "DeepseekV3ForCausalLM"; },
          .read = read_deepseek_v3,
          .write = write_deepseek_v3,
          .names = name_tensors,
          .aliases = {{"num_local_experts", "n_routed_experts"},
                      {"num_mtp_layers", "num_nextn_predict_layers"}},
          .padding_token = -1,
          .fit = fit_depths,
          .is_extra = is_of_later_layer,
          .depths_key = "num_nextn_predict_layers",
          .copies = copies,
          .original_of = copied};
}

} // namespace pentatron::checkpoint
