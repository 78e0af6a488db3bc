/// GPT-OSS: windows in layers 0, 2, 4..., attention sinks, and biases everywhere. llama.cpp rounds
/// the ends of YaRN's ramp, which these models do not; the file does not say it.
#include "pentatron/checkpoint/gguf/families/all.h"

namespace pentatron::checkpoint {

namespace {

constexpr double kAlpha = 1.702, kLimit = 7.0; ///< of the activation

constexpr std::string_view kKeys[] = {"expert_feed_forward_length"};

const char* layer_type(int64_t layer) {
  return layer % 2 == 0 ? "sliding_attention" : "full_attention";
}

void read_gpt_oss(GgufKeyReader& in, const GgufStructure& s, Json& hf) {
  hf["sliding_window"] = in.size("attention.sliding_window");
  Json types = Json::array();
  for (int64_t i = 0; i < std::min<int64_t>(s.layers, std::ssize(in.file().tensors())); ++i)
    types.push_back(layer_type(i));
  hf["layer_types"] = std::move(types);
  hf["swiglu_alpha"] = kAlpha;
  hf["swiglu_limit"] = kLimit;
}

void write_gpt_oss(GgufKeyWriter& w, int64_t) {
  require_number(w, "swiglu_alpha", w.get<double>("swiglu_alpha", kAlpha), kAlpha);
  require_number(w, "swiglu_limit", w.get<double>("swiglu_limit", kLimit), kLimit);
  if (w.json().contains("sliding_window") && w.json()["sliding_window"].is_null())
    w.problem("sliding_window=null cannot be stored in a GGUF file of gpt-oss");
  else
    w.put("attention.sliding_window", w.size("sliding_window", 128));
  const auto types = w.get<std::vector<std::string>>("layer_types", {});
  for (size_t i = 0; i < types.size(); ++i)
    if (types[i] != layer_type(static_cast<int64_t>(i)))
      return w.problem("layer_types in which the layers with a window are not 0, 2, 4... cannot be "
                       "stored in a GGUF file of gpt-oss");
}

} // namespace

GgufFamily gpt_oss_gguf() {
  return {.architecture = "gpt-oss",
          .model_type = "gpt_oss",
          .model_class = "GptOssForCausalLM",
          .decoder = {.norms = {.attention_output = "post_attention_layernorm", .mlp = nullptr},
                      .experts = {.count = "num_local_experts",
                                  .writes_ffn = true,
                                  .biases = true,
                                  .default_count = 128,
                                  .default_top_k = 4},
                      .sinks = true,
                      .yarn_truncate = false,
                      .names_plain_rope = true,
                      .biases = GgufBiases::kAll,
                      .needs_untied = true,
                      .window_given = true,
                      .attention_bias = true,
                      .head_size = 64,
                      .positions = 131072,
                      .norm_epsilon = 1e-5,
                      .rope_theta = 150000,
                      .read_more = read_gpt_oss,
                      .write_more = write_gpt_oss},
          .keys = kKeys};
}

} // namespace pentatron::checkpoint
