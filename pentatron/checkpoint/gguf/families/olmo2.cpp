#include "pentatron/checkpoint/gguf/families/all.h"

namespace pentatron::checkpoint {

GgufFamily olmo2_gguf() {
  return {.architecture = "olmo2",
          .model_type = "olmo2",
          .model_class = "Olmo2ForCausalLM",
          .decoder = {.norms = {.attention = nullptr,
                                .attention_output = "post_attention_layernorm",
                                .mlp = nullptr,
                                .mlp_output = "post_feedforward_layernorm"},
                      .head_norms = GgufHeadNorms::kProjection,
                      .biases = GgufBiases::kRefused,
                      .needs_untied = true,
                      .square = true,
                      .norm_epsilon = 1e-5}};
}

} // namespace pentatron::checkpoint
