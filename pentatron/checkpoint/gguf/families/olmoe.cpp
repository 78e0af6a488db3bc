#include "pentatron/checkpoint/gguf/families/all.h"

namespace pentatron::checkpoint {

namespace {

void write_olmoe(GgufKeyWriter& w, int64_t) {
  const GgufStructure& s = w.structure();
  if (w.has("clip_qkv")) w.problem("clip_qkv cannot be stored in GGUF");
  if (s.kv_heads != s.heads)
    w.problem(fmt::format("num_key_value_heads={} is not num_attention_heads={}, as a GGUF file of "
                          "olmoe implies",
                          s.kv_heads, s.heads));
}

} // namespace

GgufFamily olmoe_gguf() {
  return {.architecture = "olmoe",
          .model_type = "olmoe",
          .model_class = "OlmoeForCausalLM",
          .decoder = {.head_norms = GgufHeadNorms::kProjection,
                      .experts = {.count = "num_experts",
                                  .normed = false,
                                  .default_count = 64,
                                  .default_top_k = 8},
                      .biases = GgufBiases::kRefused,
                      .needs_untied = true,
                      .square = true,
                      .positions = 4096,
                      .norm_epsilon = 1e-5,
                      .write_more = write_olmoe}};
}

} // namespace pentatron::checkpoint
