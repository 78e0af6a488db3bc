/// The rules of a model with multi-head latent attention.
#include <fmt/format.h>

#include "pentatron/config/config.h"
#include "pentatron/models/model_config.h"

namespace pentatron::models {

void ModelConfig::validate_latents(config::Violations& violations, std::string_view path) const {
  const auto key = [&](std::string_view name) { return config::join(path, name); };
  const auto idle = [&](bool given, const char* name, const char* otherwise) {
    if (given)
      violations.add(key(name),
                     fmt::format("{} has no effect with {}={}", key(name),
                                 key("multi_latent_attention"), multi_latent_attention),
                     multi_latent_attention
                         ? fmt::format("{}={}", key(name), otherwise)
                         : fmt::format("{}=true", key("multi_latent_attention")));
  };
  if (!multi_latent_attention) {
    const ModelConfig none;
    idle(q_lora_rank.has_value(), "q_lora_rank", "");
    idle(kv_lora_rank != none.kv_lora_rank, "kv_lora_rank", "");
    idle(qk_head_dim != none.qk_head_dim, "qk_head_dim", "");
    idle(qk_pos_emb_head_dim != none.qk_pos_emb_head_dim, "qk_pos_emb_head_dim", "");
    idle(v_head_dim != none.v_head_dim, "v_head_dim", "");
    idle(latent_layernorm_epsilon.has_value(), "latent_layernorm_epsilon", "");
    return;
  }
  idle(kv_channels.has_value(), "kv_channels", "null");
  idle(rotary_percent != 1, "rotary_percent", "1");
  if (qk_layernorm)
    violations.add(
        key("qk_layernorm"),
        fmt::format("{}=true conflicts with {}=true, whose latents always have norms",
                    key("qk_layernorm"), key("multi_latent_attention")),
        qk_layernorm_scope == QkNormScope::kHead
            ? fmt::format("{}=false", key("qk_layernorm"))
            : fmt::format("{}=false and {}=head", key("qk_layernorm"), key("qk_layernorm_scope")));
  if (query_groups() != num_attention_heads)
    violations.add(
        key("num_query_groups"),
        fmt::format("{}={} conflicts with {}=true, where each of {}={} heads has its own keys",
                    key("num_query_groups"), query_groups(), key("multi_latent_attention"),
                    key("num_attention_heads"), num_attention_heads),
        fmt::format("{}=null", key("num_query_groups")));
}

} // namespace pentatron::models
