/// Gemma 2 and 3: norms that are stored minus 1, windows in all but every n-th layer.
#include <algorithm>

#include "pentatron/base/log.h"
#include "pentatron/base/text.h"
#include "pentatron/checkpoint/gguf/families/all.h"

namespace pentatron::checkpoint {

namespace {

constexpr std::string_view kKeys2[] = {"final_logit_softcapping",
                                       "attention.sliding_window_pattern", "rope.freq_base_swa",
                                       "attn_logit_softcapping"};
constexpr std::span<const std::string_view> kKeys3 = std::span(kKeys2).first(3);
constexpr std::string_view kGelu[] = {"gelu_pytorch_tanh", "gelu_new"};
constexpr int64_t kPattern2 = 2, kPattern3 = 6; ///< every how many layers one has no window

/// The number whose inverse root attention scores are multiplied with, as llama.cpp has it: files
/// do not say it. The models of 27B parameters are told by their number of layers.
int64_t query_scalar(const GgufStructure& s, int64_t layers_of_largest) {
  return s.layers == layers_of_largest ? s.hidden / s.heads : s.head_size;
}
int64_t query_scalar2(const GgufStructure& s) {
  return query_scalar(s, 46);
}
int64_t query_scalar3(const GgufStructure& s) {
  return query_scalar(s, 62);
}

void read_layers(GgufKeyReader& in, const GgufStructure& s, std::optional<int64_t> window,
                 int64_t usual, Json& hf) {
  const int64_t every = in.find_size("attention.sliding_window_pattern").value_or(usual);
  Json types = Json::array();
  for (int64_t i = 0; i < std::min<int64_t>(s.layers, in.file().tensors().size()); ++i)
    types.push_back(window && (i + 1) % every != 0 ? "sliding_attention" : "full_attention");
  hf["layer_types"] = std::move(types);
  hf["sliding_window"] = window.value_or(4096);
}

void read_gemma2(GgufKeyReader& in, const GgufStructure& s, Json& hf) {
  const bool said = in.has("attention.sliding_window");
  read_layers(in, s, said ? read_window(in) : std::optional<int64_t>(4096), kPattern2, hf);
  hf["query_pre_attn_scalar"] = query_scalar2(s);
  hf["attn_logit_softcapping"] = in.number("attn_logit_softcapping").value_or(50);
  hf["final_logit_softcapping"] = in.number("final_logit_softcapping").value_or(30);
  const double theta = hf["rope_theta"];
  if (in.number("rope.freq_base_swa").value_or(theta) != theta)
    in.problem(fmt::format("{} that differs from rope.freq_base is not supported",
                           in.full("rope.freq_base_swa")));
}

void read_gemma3(GgufKeyReader& in, const GgufStructure& s, Json& hf) {
  read_layers(in, s, read_window(in), kPattern3, hf);
  hf["query_pre_attn_scalar"] = query_scalar3(s);
  const auto cap = in.number("final_logit_softcapping");
  hf["final_logit_softcapping"] = cap && *cap != 0 ? Json(*cap) : Json();
  const double local = in.number("rope.freq_base_swa").value_or(10000.0);
  hf["rope_local_base_freq"] = local;
  Json full = hf["rope_scaling"].is_null() ? Json{{"rope_type", "default"}} : hf["rope_scaling"];
  full["rope_theta"] = hf["rope_theta"];
  hf["rope_parameters"] = {
      {"full_attention", std::move(full)},
      {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", local}}}};
}

/// Every how many layers one has no window: `usual` if it fits.
std::optional<int64_t> window_pattern(const std::vector<std::string>& types, int64_t usual) {
  const auto fits = [&](int64_t every) {
    for (size_t i = 0; i < types.size(); ++i) {
      const bool full = (static_cast<int64_t>(i) + 1) % every == 0;
      if (types[i] != (full ? "full_attention" : "sliding_attention")) return false;
    }
    return true;
  };
  if (fits(usual)) return usual;
  for (int64_t every = 1; every <= static_cast<int64_t>(types.size()) + 1; ++every)
    if (fits(every)) return every;
  return std::nullopt;
}

/// Returns whether it can.
bool write_layers(GgufKeyWriter& w, int64_t said, int64_t usual) {
  std::optional<int64_t> every = said;
  if (w.has("layer_types"))
    every = window_pattern(w.get<std::vector<std::string>>("layer_types"), usual);
  if (!every) {
    w.problem("layer_types in which full_attention is not exactly every n-th layer cannot be "
              "stored in GGUF");
    return false;
  }
  w.put("attention.sliding_window", w.size("sliding_window", 4096));
  if (*every != usual) {
    w.put("attention.sliding_window_pattern", *every);
    log::warning("llama.cpp versions before 2026 ignore that one in {} layers has no sliding "
                 "window, and assume one in {} instead",
                 *every, usual);
  }
  return true;
}

void require_scalar(GgufKeyWriter& w, int64_t implied) {
  require_number(w, "query_pre_attn_scalar", w.get<double>("query_pre_attn_scalar", 256),
                 static_cast<double>(implied));
}

void write_gemma2(GgufKeyWriter& w, int64_t) {
  require_scalar(w, query_scalar2(w.structure()));
  if (w.structure().untied)
    w.problem("tie_word_embeddings=false cannot be stored in a gemma2 file");
  if (!write_layers(w, kPattern2, kPattern2)) return;
  for (const auto& [key, usual] :
       {std::pair{"attn_logit_softcapping", 50.0}, {"final_logit_softcapping", 30.0}}) {
    if (w.json().contains(key) && w.json()[key].is_null())
      w.problem(fmt::format("{}=null cannot be stored in a gemma2 file", key));
    w.put(key, w.get<double>(key, usual));
  }
}

void write_gemma3(GgufKeyWriter& w, int64_t) {
  require_scalar(w, query_scalar3(w.structure()));
  if (!write_layers(w, w.size("sliding_window_pattern", kPattern3), kPattern3)) return;
  if (w.has("final_logit_softcapping"))
    w.put("final_logit_softcapping", w.get<double>("final_logit_softcapping"));
  Json sliding = Json::object();
  if (w.has("rope_parameters") && w.json()["rope_parameters"].is_object())
    sliding = w.json()["rope_parameters"].value("sliding_attention", Json::object());
  const char* const kind = sliding.contains("rope_type") ? "rope_type" : "type";
  if (const auto type = json_get_or<std::string>(sliding, kind, "default", GgufKeyWriter::kWhere);
      type != "default")
    w.problem(fmt::format("rope_type={} in layers with a sliding window cannot be stored in a GGUF "
                          "file of gemma3",
                          excerpt(type)));
  w.put("rope.freq_base_swa",
        json_get_or<double>(sliding, "rope_theta", w.get<double>("rope_local_base_freq", 10000.0),
                            GgufKeyWriter::kWhere));
}

GgufDecoder gemma() {
  return {.norms = {.attention_output = "post_attention_layernorm",
                    .mlp = "pre_feedforward_layernorm",
                    .mlp_output = "post_feedforward_layernorm"},
          .norm_shift = 1,
          .biases = GgufBiases::kRefused,
          .window_given = true,
          .activation_key = "hidden_activation",
          .activations = kGelu,
          .tied = true,
          .head_size = 256,
          .positions = 8192};
}

} // namespace

GgufFamily gemma2_gguf() {
  GgufFamily family{.architecture = "gemma2",
                    .model_type = "gemma2",
                    .model_class = "Gemma2ForCausalLM",
                    .decoder = gemma(),
                    .keys = kKeys2};
  family.decoder.read_more = read_gemma2;
  family.decoder.write_more = write_gemma2;
  return family;
}

GgufFamily gemma3_gguf() {
  GgufFamily family{.architecture = "gemma3",
                    .model_type = "gemma3_text",
                    .model_class = "Gemma3ForCausalLM",
                    .decoder = gemma(),
                    .keys = kKeys3};
  family.decoder.head_norms = GgufHeadNorms::kHead;
  family.decoder.rope_theta = 1e6;
  family.decoder.read_more = read_gemma3;
  family.decoder.write_more = write_gemma3;
  return family;
}

} // namespace pentatron::checkpoint
