/// Llama, and Mistral and Mixtral, which llama.cpp has as Llama with a window and with experts.
#include "pentatron/checkpoint/gguf/families/all.h"

namespace pentatron::checkpoint {

namespace {

void read_mistral(GgufKeyReader& in, const GgufStructure& s, Json& hf) {
  hf["sliding_window"] = *read_window(in);
  if (s.qkv_bias || s.mlp_bias)
    in.problem("biases together with a sliding window are not supported");
}

void read_mixtral(GgufKeyReader& in, const GgufStructure&, Json& hf) {
  const auto window = read_window(in);
  hf["sliding_window"] = window ? Json(*window) : Json();
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

GgufFamily mixtral_gguf() {
  GgufFamily family = mistral_gguf();
  family.model_type = "mixtral";
  family.model_class = "MixtralForCausalLM";
  family.decoder.experts = {.count = "num_local_experts"};
  family.decoder.norm_epsilon = 1e-5;
  family.decoder.rope_theta = 1e6;
  family.decoder.positions = 131072;
  family.decoder.read_more = read_mixtral;
  return family;
}

} // namespace pentatron::checkpoint
