#include "pentatron/checkpoint/hf/weight_map.h"

#include <algorithm>

#include <fmt/format.h>

#include "pentatron/base/error.h"
#include "pentatron/models/param_specs.h"

namespace pentatron::checkpoint {

namespace {

std::vector<WeightMapEntry> gpt2_map(const models::GptConfig& c) {
  std::vector<WeightMapEntry> map = {{"transformer.wte.weight", "embedding.word.weight", ""},
                                     {"transformer.wpe.weight", "embedding.position.weight", ""}};
  for (int64_t i = 0; i < c.num_layers; ++i) {
    const std::string hf = fmt::format("transformer.h.{}.", i), own = fmt::format("layers.{}.", i);
    const auto add = [&](const char* theirs, const char* ours, bool matrix) {
      map.push_back({hf + theirs + ".weight", own + ours + ".weight", "", matrix});
      map.push_back({hf + theirs + ".bias", own + ours + ".bias", ""});
    };
    add("ln_1", "attention_norm", false);
    add("attn.c_attn", "attention.qkv", true);
    add("attn.c_proj", "attention.proj", true);
    add("ln_2", "mlp_norm", false);
    add("mlp.c_fc", "mlp.fc1", true);
    add("mlp.c_proj", "mlp.fc2", true);
  }
  map.push_back({"transformer.ln_f.weight", "final_norm.weight", ""});
  map.push_back({"transformer.ln_f.bias", "final_norm.bias", ""});
  if (c.untie_embeddings_and_output_weights) map.push_back({"lm_head.weight", "output.weight", ""});
  return map;
}

/// Llama, Mistral and Qwen.
std::vector<WeightMapEntry> llama_map(const models::GptConfig& c) {
  std::vector<WeightMapEntry> map = {{"model.embed_tokens.weight", "embedding.word.weight", ""}};
  for (int64_t i = 0; i < c.num_layers; ++i) {
    const std::string hf = fmt::format("model.layers.{}.", i), own = fmt::format("layers.{}.", i);
    const auto add = [&](const char* theirs, const char* ours, const char* part, bool bias) {
      map.push_back({hf + theirs + ".weight", own + ours + ".weight", part});
      if (bias) map.push_back({hf + theirs + ".bias", own + ours + ".bias", part});
    };
    add("self_attn.q_proj", "attention.qkv", "q", c.add_qkv_bias);
    add("self_attn.k_proj", "attention.qkv", "k", c.add_qkv_bias);
    add("self_attn.v_proj", "attention.qkv", "v", c.add_qkv_bias);
    add("self_attn.o_proj", "attention.proj", "", c.add_attention_proj_bias);
    if (c.qk_layernorm) {
      add("self_attn.q_norm", "attention.q_norm", "", false);
      add("self_attn.k_norm", "attention.k_norm", "", false);
    }
    add("mlp.gate_proj", "mlp.fc1", "gate", c.add_mlp_bias);
    add("mlp.up_proj", "mlp.fc1", "up", c.add_mlp_bias);
    add("mlp.down_proj", "mlp.fc2", "", c.add_mlp_bias);
    add("input_layernorm", "attention_norm", "", false);
    add("post_attention_layernorm", "mlp_norm", "", false);
  }
  map.push_back({"model.norm.weight", "final_norm.weight", ""});
  if (c.untie_embeddings_and_output_weights) map.push_back({"lm_head.weight", "output.weight", ""});
  return map;
}

/// The shape of the parameter, and the rows that a part of a fused one covers.
void place(WeightMapEntry& entry, const models::ParamSpecs& specs) {
  const auto found = specs.find(entry.param);
  PT_DCHECK(found != specs.end());
  entry.shape = found->second.shape;
  const nn::PartRange range = nn::part_range(found->second, entry.part);
  entry.begin = range.begin;
  entry.shape[0] = range.rows;
}

} // namespace

std::vector<int64_t> WeightMapEntry::hf_shape() const {
  std::vector<int64_t> result = shape;
  if (transposed) std::reverse(result.begin(), result.end());
  return result;
}

std::vector<WeightMapEntry> weight_map(const HfModel& model) {
  std::vector<WeightMapEntry> map =
      model.family == "gpt2" ? gpt2_map(model.config) : llama_map(model.config);
  const models::ParamSpecs specs = models::param_specs(model.config);
  for (WeightMapEntry& entry : map) place(entry, specs);
  return map;
}

bool is_known_extra(std::string_view hf_name, const HfModel& model) {
  if (hf_name.ends_with(".attn.bias") || hf_name.ends_with(".attn.masked_bias") ||
      hf_name.ends_with(".rotary_emb.inv_freq"))
    return true;
  return hf_name == "lm_head.weight" && !model.config.untie_embeddings_and_output_weights;
}

} // namespace pentatron::checkpoint
