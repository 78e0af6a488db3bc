#include "pentatron/checkpoint/gguf/families/all.h"

namespace pentatron::checkpoint {

namespace {

void read_phi3(GgufKeyReader& in, const GgufStructure&, Json& hf) {
  const auto window = read_window(in);
  hf["sliding_window"] = window ? Json(*window) : Json();
  hf["original_max_position_embeddings"] =
      in.size("rope.scaling.original_context_length", in.size("context_length"));
}

void write_phi3(GgufKeyWriter& w, int64_t positions) {
  w.has("sliding_window") ? write_ignored_window(w, w.size("sliding_window"))
                          : w.put("attention.sliding_window", int64_t{0});
  w.put("rope.scaling.original_context_length", original_positions(w, positions));
}

} // namespace

GgufFamily phi3_gguf() {
  return {.architecture = "phi3",
          .model_type = "phi3",
          .model_class = "Phi3ForCausalLM",
          .decoder = {.fused_qkv = true,
                      .fused_mlp = true,
                      .longrope = true,
                      .partial_rotary = true,
                      .writes_rotary = true,
                      .square = true,
                      .window_given = true,
                      .norm_epsilon = 1e-5,
                      .read_more = read_phi3,
                      .write_more = write_phi3}};
}

} // namespace pentatron::checkpoint
