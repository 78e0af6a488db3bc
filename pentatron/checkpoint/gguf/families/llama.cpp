/// Llama, and Mistral, which llama.cpp has as Llama with a window.
#include "pentatron/checkpoint/gguf/families/all.h"

namespace pentatron::checkpoint {

namespace {

void read_mistral(GgufKeyReader& in, const GgufStructure& s, Json& hf) {
  hf["sliding_window"] = *read_window(in);
  if (s.qkv_bias || s.mlp_bias)
    in.problem("biases together with a sliding window are not supported");
}

void write_mistral(GgufKeyWriter& w, int64_t) {
  if (w.has("sliding_window")) write_ignored_window(w, w.size("sliding_window"));
}

} // namespace

GgufFamily llama_gguf() {
  return {.architecture = "llama",
          .model_type = "llama",
          .model_class = "LlamaForCausalLM",
          .decoder = {.rotary_rows = true,
                      .biases = GgufBiases::kGiven,
                      .mlp_bias = true,
                      .llama3_rope = true,
                      .writes_rotary = true}};
}

GgufFamily mistral_gguf() {
  return {.architecture = "llama",
          .model_type = "mistral",
          .model_class = "MistralForCausalLM",
          .windowed = true,
          .decoder = {.rotary_rows = true,
                      .biases = GgufBiases::kRefused,
                      .llama3_rope = true,
                      .writes_rotary = true,
                      .window_given = true,
                      .read_more = read_mistral,
                      .write_more = write_mistral}};
}

} // namespace pentatron::checkpoint
