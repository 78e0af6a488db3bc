#include "pentatron/checkpoint/gguf/key_names.h"

#include <algorithm>

#include <fmt/format.h>

namespace pentatron::checkpoint {

const std::vector<KeyName>& key_names() {
  static const std::vector<KeyName> names = {
      {"activation_function", "model.activation_func"},
      {"attention_bias", "model.add_qkv_bias and model.add_attention_proj_bias"},
      {"attn_logit_softcapping", "model.attn_logit_softcapping"},
      {"decoder_sparse_step", "model.moe_layer_freq"},
      {"final_logit_softcapping", "model.final_logit_softcapping"},
      {"head_dim", "model.kv_channels"},
      {"hidden_act", "model.activation_func"},
      {"hidden_activation", "model.activation_func"},
      {"layer_types", "model.full_attention_layers"},
      {"mlp_only_layers", "model.moe_layer_freq"},
      {"norm_topk_prob", "model.moe_router_pre_softmax"},
      {"num_key_value_heads", "model.num_query_groups"},
      {"qkv_bias", "model.add_qkv_bias"},
      {"q_lora_rank", "model.q_lora_rank"},
      {"query_pre_attn_scalar", "model.softmax_scale"},
      {"rope_parameters.attention_factor", "model.rope_scaling.attention_factor"},
      {"rope_parameters.factor", "model.rope_scaling.factor"},
      {"rope_parameters.mscale", "model.rope_scaling.mscale"},
      {"rope_parameters.mscale_all_dim", "model.rope_scaling.mscale_all_dim"},
      {"rope_parameters.truncate", "model.rope_scaling.truncate"},
      {"rope_type", "model.rope_scaling.type"},
      {"routed_scaling_factor", "model.moe_router_topk_scaling_factor"},
      {"scale_attn_by_inverse_layer_idx", "model.scale_attn_by_inverse_layer_idx"},
      {"scale_attn_weights", "model.softmax_scale"},
      {"sliding_window", "model.window_size"},
      {"swiglu_limit", "model.activation_func_clamp_value"},
      {"tie_word_embeddings", "model.untie_embeddings_and_output_weights"},
  };
  return names;
}

std::string with_key_name(std::string sentence) {
  const std::string key = sentence.substr(0, sentence.find_first_of(" ="));
  const auto found = std::ranges::find(key_names(), key, &KeyName::first);
  return found == key_names().end() ? std::move(sentence)
                                    : fmt::format("{} ({})", sentence, found->second);
}

} // namespace pentatron::checkpoint
