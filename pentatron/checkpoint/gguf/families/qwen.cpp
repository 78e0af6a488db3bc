/// Qwen 2, 2.5 and 3, and those with experts. Their windows have no place in a file.
#include "pentatron/checkpoint/gguf/families/all.h"

namespace pentatron::checkpoint {

namespace {

constexpr std::string_view kExpertKeys[] = {"expert_feed_forward_length",
                                            "expert_shared_feed_forward_length"};

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

void write_qwen2_moe(GgufKeyWriter& w, int64_t positions) {
  write_qwen(w, positions);
  if (!w.get<bool>("qkv_bias", true)) w.problem("qkv_bias=false cannot be stored in GGUF");
}

/// Its window is of all layers.
void write_qwen3_moe(GgufKeyWriter& w, int64_t) {
  if (w.get<bool>("use_sliding_window", false) && w.has("sliding_window"))
    w.problem(fmt::format("sliding_window={} of qwen3_moe cannot be stored in GGUF",
                          w.get<int64_t>("sliding_window")));
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

GgufFamily qwen2_moe_gguf() {
  GgufFamily family = qwen2_gguf();
  family.architecture = "qwen2moe";
  family.model_type = "qwen2_moe";
  family.model_class = "Qwen2MoeForCausalLM";
  family.keys = kExpertKeys;
  family.decoder.experts = {.count = "num_experts",
                            .ffn = "moe_intermediate_size",
                            .shared_ffn = "shared_expert_intermediate_size",
                            .writes_ffn = true,
                            .normed = false,
                            .default_count = 60,
                            .default_top_k = 4,
                            .default_ffn = 1408,
                            .default_shared_ffn = 5632};
  family.decoder.positions = 32768;
  family.decoder.write_more = write_qwen2_moe;
  return family;
}

GgufFamily qwen3_moe_gguf() {
  GgufFamily family = qwen3_gguf();
  family.architecture = "qwen3moe";
  family.model_type = "qwen3_moe";
  family.model_class = "Qwen3MoeForCausalLM";
  family.keys = std::span(kExpertKeys).first(1);
  family.decoder.experts = {.count = "num_experts",
                            .ffn = "moe_intermediate_size",
                            .writes_ffn = true,
                            .normed = true,
                            .default_count = 128,
                            .default_top_k = 8,
                            .default_ffn = 768};
  family.decoder.biases = GgufBiases::kRefused;
  family.decoder.head_size.reset();
  family.decoder.positions = 32768;
  family.decoder.write_more = write_qwen3_moe;
  return family;
}

} // namespace pentatron::checkpoint
