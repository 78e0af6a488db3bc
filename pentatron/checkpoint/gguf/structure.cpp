#include "pentatron/checkpoint/gguf/structure.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

namespace pentatron::checkpoint {

namespace {

/// Adds `<gguf>.weight` [shape], and `<gguf>.bias` [shape[0] of the GGUF tensor] where there is
/// one.
class List {
 public:
  void add(std::string gguf, std::string hf, std::vector<int64_t> shape, bool bias = false,
           GgufOrder order = GgufOrder::kSame, int64_t heads = 1) {
    const int64_t out = order == GgufOrder::kTransposed ? shape.back() : shape.front();
    entries_.push_back({gguf + ".weight", hf + ".weight", std::move(shape), order, heads});
    if (!bias) return;
    const GgufOrder rows = order == GgufOrder::kRotary ? order : GgufOrder::kSame;
    entries_.push_back({gguf + ".bias", hf + ".bias", {out}, rows, heads});
  }
  void shift_last(float shift) { entries_.back().shift = shift; }
  std::vector<GgufMapEntry> take() { return std::move(entries_); }

 private:
  std::vector<GgufMapEntry> entries_;
};

std::vector<GgufMapEntry> gpt2_map(const GgufStructure& s) {
  List list;
  list.add("token_embd", "transformer.wte", {s.vocab, s.hidden});
  list.add("position_embd", "transformer.wpe", {s.positions, s.hidden});
  constexpr auto kConv = GgufOrder::kTransposed;
  for (int64_t i = 0; i < s.layers; ++i) {
    const std::string gguf = fmt::format("blk.{}.", i), hf = fmt::format("transformer.h.{}.", i);
    list.add(gguf + "attn_norm", hf + "ln_1", {s.hidden}, true);
    list.add(gguf + "attn_qkv", hf + "attn.c_attn", {s.hidden, 3 * s.hidden}, true, kConv);
    list.add(gguf + "attn_output", hf + "attn.c_proj", {s.hidden, s.hidden}, true, kConv);
    list.add(gguf + "ffn_norm", hf + "ln_2", {s.hidden}, true);
    list.add(gguf + "ffn_up", hf + "mlp.c_fc", {s.hidden, s.ffn}, true, kConv);
    list.add(gguf + "ffn_down", hf + "mlp.c_proj", {s.ffn, s.hidden}, true, kConv);
  }
  list.add("output_norm", "transformer.ln_f", {s.hidden}, true);
  if (s.untied) list.add("output", "lm_head", {s.vocab, s.hidden});
  return list.take();
}

/// Hugging Face's names of a layer's norms; null: there is none.
struct LayerNorms {
  const char* attention = "input_layernorm";
  const char* attention_output = nullptr;
  const char* mlp = "post_attention_layernorm";
  const char* mlp_output = nullptr;
};

LayerNorms norms_of(const std::string& architecture) {
  if (architecture == "olmo2")
    return {nullptr, "post_attention_layernorm", nullptr, "post_feedforward_layernorm"};
  if (is_gemma(architecture))
    return {.attention_output = "post_attention_layernorm",
            .mlp = "pre_feedforward_layernorm",
            .mlp_output = "post_feedforward_layernorm"};
  if (architecture == "glm4")
    return {.attention_output = "post_self_attn_layernorm", .mlp_output = "post_mlp_layernorm"};
  return {};
}

/// Llama and the decoders that are made of the same blocks.
std::vector<GgufMapEntry> decoder_map(const GgufStructure& s) {
  List list;
  const bool phi3 = s.architecture == "phi3", olmo2 = s.architecture == "olmo2";
  const LayerNorms norms = norms_of(s.architecture);
  const GgufOrder order = s.architecture == "llama" ? GgufOrder::kRotary : GgufOrder::kSame;
  const int64_t q = s.heads * s.head_size, kv = s.kv_heads * s.head_size;
  const auto norm = [&](const std::string& gguf, const std::string& hf, int64_t size) {
    list.add(gguf, hf, {size});
    if (is_gemma(s.architecture)) list.shift_last(1);
  };
  list.add("token_embd", "model.embed_tokens", {s.vocab, s.hidden});
  for (int64_t i = 0; i < s.layers; ++i) {
    const std::string gguf = fmt::format("blk.{}.", i), hf = fmt::format("model.layers.{}.", i);
    const std::string attention = hf + "self_attn.", mlp = hf + "mlp.";
    const auto layer_norm = [&](const char* ours, const char* theirs) {
      if (theirs != nullptr) norm(gguf + ours, hf + theirs, s.hidden);
    };
    layer_norm("attn_norm", norms.attention);
    if (phi3) {
      list.add(gguf + "attn_qkv", attention + "qkv_proj", {q + 2 * kv, s.hidden});
    } else {
      list.add(gguf + "attn_q", attention + "q_proj", {q, s.hidden}, s.qkv_bias, order, s.heads);
      list.add(gguf + "attn_k", attention + "k_proj", {kv, s.hidden}, s.qkv_bias, order,
               s.kv_heads);
      list.add(gguf + "attn_v", attention + "v_proj", {kv, s.hidden}, s.qkv_bias);
    }
    list.add(gguf + "attn_output", attention + "o_proj", {s.hidden, q}, s.proj_bias);
    if (olmo2 || s.architecture == "qwen3" || s.architecture == "gemma3") {
      norm(gguf + "attn_q_norm", attention + "q_norm", olmo2 ? q : s.head_size);
      norm(gguf + "attn_k_norm", attention + "k_norm", olmo2 ? kv : s.head_size);
    }
    layer_norm("post_attention_norm", norms.attention_output);
    layer_norm("ffn_norm", norms.mlp);
    if (phi3 || s.architecture == "glm4") {
      list.add(gguf + "ffn_up", mlp + "gate_up_proj", {2 * s.ffn, s.hidden});
    } else {
      list.add(gguf + "ffn_gate", mlp + "gate_proj", {s.ffn, s.hidden}, s.mlp_bias);
      list.add(gguf + "ffn_up", mlp + "up_proj", {s.ffn, s.hidden}, s.mlp_bias);
    }
    list.add(gguf + "ffn_down", mlp + "down_proj", {s.hidden, s.ffn}, s.mlp_bias);
    layer_norm("post_ffw_norm", norms.mlp_output);
  }
  norm("output_norm", "model.norm", s.hidden);
  if (s.untied) list.add("output", "lm_head", {s.vocab, s.hidden});
  return list.take();
}

} // namespace

std::span<const GgufFamily> gguf_families() {
  static constexpr GgufFamily kFamilies[] = {
      {"llama", "llama", "LlamaForCausalLM"},    {"llama", "mistral", "MistralForCausalLM"},
      {"qwen2", "qwen2", "Qwen2ForCausalLM"},    {"qwen3", "qwen3", "Qwen3ForCausalLM"},
      {"olmo2", "olmo2", "Olmo2ForCausalLM"},    {"phi3", "phi3", "Phi3ForCausalLM"},
      {"gemma2", "gemma2", "Gemma2ForCausalLM"}, {"gemma3", "gemma3_text", "Gemma3ForCausalLM"},
      {"glm4", "glm4", "Glm4ForCausalLM"},       {"gpt2", "gpt2", "GPT2LMHeadModel"}};
  return kFamilies;
}

const GgufFamily* find_gguf_family(std::string_view GgufFamily::*name, std::string_view value) {
  const auto found = std::ranges::find(gguf_families(), value, name);
  return found == gguf_families().end() ? nullptr : &*found;
}

std::string gguf_family_list() {
  std::string text;
  for (const GgufFamily& family : gguf_families()) {
    if (!text.empty()) text += &family == &gguf_families().back() ? " or " : ", ";
    text += family.model_type;
  }
  return text;
}

bool is_gemma(std::string_view architecture) {
  return architecture == "gemma2" || architecture == "gemma3";
}

int64_t gemma_query_scalar(const GgufStructure& s) {
  // The models of 27B parameters are told by their number of layers.
  const bool largest = s.layers == (s.architecture == "gemma2" ? 46 : 62);
  return largest ? s.hidden / s.heads : s.head_size;
}

std::vector<int64_t> GgufMapEntry::gguf_shape() const {
  if (order != GgufOrder::kTransposed) return shape;
  return {shape[1], shape[0]};
}

std::vector<GgufMapEntry> gguf_map(const GgufStructure& structure) {
  return structure.architecture == "gpt2" ? gpt2_map(structure) : decoder_map(structure);
}

int64_t hf_row(const GgufMapEntry& entry, int64_t row, int64_t rows) {
  if (entry.order != GgufOrder::kRotary) return row;
  const int64_t size = rows / entry.heads, in_head = row % size;
  return row - in_head + in_head % 2 * (size / 2) + in_head / 2;
}

} // namespace pentatron::checkpoint
