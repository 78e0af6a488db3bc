/// Qwen 2, 2.5 and 3. Their windows have no place in a file.
#include "pentatron/checkpoint/gguf/families/all.h"

namespace pentatron::checkpoint {

namespace {

void read_qwen(GgufKeyReader&, const GgufStructure&, Json& hf) {
  hf["use_sliding_window"] = false;
}

void write_qwen(GgufKeyWriter& w, int64_t) {
  if (!w.get<bool>("use_sliding_window", false) || !w.has("sliding_window")) return;
  bool windowed = w.get<int64_t>("max_window_layers", 28) < w.structure().layers;
  if (w.has("layer_types")) {
    windowed = false;
    for (const auto& type : w.get<std::vector<std::string>>("layer_types"))
      windowed = windowed || type != "full_attention";
  }
  if (windowed)
    w.problem(fmt::format("sliding_window={} in some layers of {} cannot be stored in GGUF",
                          w.get<int64_t>("sliding_window"), w.structure().family->model_type));
}

} // namespace

GgufFamily qwen2_gguf() {
  return {.architecture = "qwen2",
          .model_type = "qwen2",
          .model_class = "Qwen2ForCausalLM",
          .decoder = {.biases = GgufBiases::kQkv,
                      .has_head_size = false,
                      .read_more = read_qwen,
                      .write_more = write_qwen}};
}

GgufFamily qwen3_gguf() {
  return {.architecture = "qwen3",
          .model_type = "qwen3",
          .model_class = "Qwen3ForCausalLM",
          .decoder = {.head_norms = GgufHeadNorms::kHead,
                      .biases = GgufBiases::kGiven,
                      .head_size = 128,
                      .read_more = read_qwen,
                      .write_more = write_qwen}};
}

} // namespace pentatron::checkpoint
