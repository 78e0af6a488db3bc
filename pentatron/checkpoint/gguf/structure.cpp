#include "pentatron/checkpoint/gguf/structure.h"

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

std::vector<GgufMapEntry> llama_map(const GgufStructure& s) {
  List list;
  list.add("token_embd", "model.embed_tokens", {s.vocab, s.hidden});
  const GgufOrder order = s.architecture == "llama" ? GgufOrder::kRotary : GgufOrder::kSame;
  const int64_t q = s.heads * s.head_size, kv = s.kv_heads * s.head_size;
  for (int64_t i = 0; i < s.layers; ++i) {
    const std::string gguf = fmt::format("blk.{}.", i), hf = fmt::format("model.layers.{}.", i);
    const std::string attention = hf + "self_attn.", mlp = hf + "mlp.";
    list.add(gguf + "attn_norm", hf + "input_layernorm", {s.hidden});
    list.add(gguf + "attn_q", attention + "q_proj", {q, s.hidden}, s.qkv_bias, order, s.heads);
    list.add(gguf + "attn_k", attention + "k_proj", {kv, s.hidden}, s.qkv_bias, order, s.kv_heads);
    list.add(gguf + "attn_v", attention + "v_proj", {kv, s.hidden}, s.qkv_bias);
    list.add(gguf + "attn_output", attention + "o_proj", {s.hidden, q}, s.proj_bias);
    if (s.architecture == "qwen3") {
      list.add(gguf + "attn_q_norm", attention + "q_norm", {s.head_size});
      list.add(gguf + "attn_k_norm", attention + "k_norm", {s.head_size});
    }
    list.add(gguf + "ffn_norm", hf + "post_attention_layernorm", {s.hidden});
    list.add(gguf + "ffn_gate", mlp + "gate_proj", {s.ffn, s.hidden}, s.mlp_bias);
    list.add(gguf + "ffn_up", mlp + "up_proj", {s.ffn, s.hidden}, s.mlp_bias);
    list.add(gguf + "ffn_down", mlp + "down_proj", {s.hidden, s.ffn}, s.mlp_bias);
  }
  list.add("output_norm", "model.norm", {s.hidden});
  if (s.untied) list.add("output", "lm_head", {s.vocab, s.hidden});
  return list.take();
}

} // namespace

std::vector<int64_t> GgufMapEntry::gguf_shape() const {
  if (order != GgufOrder::kTransposed) return shape;
  return {shape[1], shape[0]};
}

std::vector<GgufMapEntry> gguf_map(const GgufStructure& structure) {
  return structure.architecture == "gpt2" ? gpt2_map(structure) : llama_map(structure);
}

int64_t hf_row(const GgufMapEntry& entry, int64_t row, int64_t rows) {
  if (entry.order != GgufOrder::kRotary) return row;
  const int64_t size = rows / entry.heads, in_head = row % size;
  return row - in_head + in_head % 2 * (size / 2) + in_head / 2;
}

} // namespace pentatron::checkpoint
