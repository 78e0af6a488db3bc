#include "pentatron/checkpoint/gguf/families/all.h"

namespace pentatron::checkpoint {

GgufFamily glm4_gguf() {
  return {.architecture = "glm4",
          .model_type = "glm4",
          .model_class = "Glm4ForCausalLM",
          .decoder = {.norms = {.attention_output = "post_self_attn_layernorm",
                                .mlp_output = "post_mlp_layernorm"},
                      .fused_mlp = true,
                      .biases = GgufBiases::kQkvGiven,
                      .partial_rotary = true,
                      .writes_rotary = true,
                      .attention_bias = true,
                      .norm_epsilon = 1.5625e-7,
                      .rotary_share = 0.5}};
}

} // namespace pentatron::checkpoint
