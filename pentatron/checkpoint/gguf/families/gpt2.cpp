#include "pentatron/base/text.h"
#include "pentatron/checkpoint/gguf/families/all.h"
#include "pentatron/checkpoint/gguf/tensor_list.h"

namespace pentatron::checkpoint {

namespace {

std::vector<GgufMapEntry> map_gpt2(const GgufStructure& s) {
  GgufTensorList list;
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

void read_gpt2(GgufKeyReader& in, GgufConfig& out) {
  GgufStructure& s = out.structure;
  Json& hf = out.hf;
  s.layers = in.size("block_count");
  s.hidden = in.size("embedding_length");
  s.heads = in.size("attention.head_count");
  s.ffn = in.size("feed_forward_length", 4 * s.hidden);
  s.positions = in.size("context_length");
  if (s.hidden % s.heads != 0)
    in.problem(
        fmt::format("{} features cannot be divided evenly among {} heads", s.hidden, s.heads));
  if (in.size("attention.head_count_kv", s.heads) != s.heads)
    in.problem("fewer key-value heads than query heads are not supported for gpt2");
  hf = {{"model_type", "gpt2"},
        {"architectures", {"GPT2LMHeadModel"}},
        {"n_layer", s.layers},
        {"n_embd", s.hidden},
        {"n_head", s.heads},
        {"n_inner", s.ffn},
        {"n_positions", s.positions},
        {"n_ctx", s.positions},
        {"activation_function", "gelu_new"},
        {"layer_norm_epsilon", in.needed_number("attention.layer_norm_epsilon")}};
}

void write_gpt2(GgufKeyWriter& w) {
  GgufStructure& s = w.structure();
  s.layers = w.size("n_layer", 12);
  s.hidden = w.size("n_embd", 768);
  s.heads = w.size("n_head", 12);
  s.ffn = w.size("n_inner", 4 * s.hidden);
  s.positions = w.size("n_positions", 1024);
  s.untied = !w.get<bool>("tie_word_embeddings", true);
  const auto act = w.get<std::string>("activation_function", "gelu_new");
  if (act != "gelu_new" && act != "gelu_pytorch_tanh")
    w.problem(fmt::format("activation_function={} cannot be stored in a gpt2 file", excerpt(act)));
  if (!w.get<bool>("scale_attn_weights", true))
    w.problem("scale_attn_weights=false cannot be stored in a gpt2 file");
  for (const char* key : {"scale_attn_by_inverse_layer_idx", "add_cross_attention"}) {
    if (w.get<bool>(key, false))
      w.problem(fmt::format("{}=true cannot be stored in a gpt2 file", key));
  }
  w.put("block_count", s.layers);
  w.put("context_length", s.positions);
  w.put("embedding_length", s.hidden);
  w.put("feed_forward_length", s.ffn);
  w.put("attention.head_count", s.heads);
  w.put("attention.layer_norm_epsilon", w.get<double>("layer_norm_epsilon", 1e-5));
}

} // namespace

GgufFamily gpt2_gguf() {
  return {.architecture = "gpt2",
          .model_type = "gpt2",
          .model_class = "GPT2LMHeadModel",
          .optional_prefix = "transformer.", // GPT2Model's files lack it
          .map = map_gpt2,
          .read = read_gpt2,
          .write = write_gpt2};
}

} // namespace pentatron::checkpoint
