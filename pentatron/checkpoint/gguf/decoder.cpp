#include "pentatron/checkpoint/gguf/decoder.h"

#include <algorithm>

#include "pentatron/checkpoint/gguf/families/family.h"
#include "pentatron/checkpoint/gguf/tensor_list.h"

namespace pentatron::checkpoint {

void add_gguf_experts(const GgufStructure& s, const std::string& gguf, const std::string& mlp,
                      GgufTensorList& list) {
  const GgufExperts& e = s.family->decoder.experts;
  const bool bias = e.biases;
  list.add(gguf + "ffn_gate_inp", mlp + "router", {s.experts, s.hidden}, bias);
  if (e.selection_bias)
    list.add_named(gguf + "exp_probs_b.bias", mlp + "router.expert_bias", {s.experts});
  const std::string hf = mlp + "experts.";
  list.add_stack(gguf + "ffn_gate_exps", hf + "gate_proj", {s.experts, s.expert_ffn, s.hidden},
                 bias);
  list.add_stack(gguf + "ffn_up_exps", hf + "up_proj", {s.experts, s.expert_ffn, s.hidden}, bias);
  list.add_stack(gguf + "ffn_down_exps", hf + "down_proj", {s.experts, s.hidden, s.expert_ffn},
                 bias);
  if (s.shared_ffn == 0) return;
  const std::string shared = mlp + "shared_expert.";
  if (e.shared_gate) {
    list.add(gguf + "ffn_gate_inp_shexp", mlp + "shared_expert_gate", {1, s.hidden});
    list.last_is_vector();
  }
  list.add(gguf + "ffn_gate_shexp", shared + "gate_proj", {s.shared_ffn, s.hidden});
  list.add(gguf + "ffn_up_shexp", shared + "up_proj", {s.shared_ffn, s.hidden});
  list.add(gguf + "ffn_down_shexp", shared + "down_proj", {s.hidden, s.shared_ffn});
}

std::vector<GgufMapEntry> decoder_map(const GgufStructure& s) {
  GgufTensorList list;
  const GgufDecoder& d = s.family->decoder;
  const GgufNorms& norms = d.norms;
  const GgufOrder order = d.rotary_rows ? GgufOrder::kRotary : GgufOrder::kSame;
  const int64_t q = s.heads * s.head_size, kv = s.kv_heads * s.head_size;
  const auto norm = [&](const std::string& gguf, const std::string& hf, int64_t size) {
    list.add(gguf, hf, {size});
    list.shift_last(d.norm_shift);
  };
  list.add("token_embd", "model.embed_tokens", {s.vocab, s.hidden});
  for (int64_t i = 0; i < s.layers; ++i) {
    const std::string gguf = fmt::format("blk.{}.", i), hf = fmt::format("model.layers.{}.", i);
    const std::string attention = hf + "self_attn.", mlp = hf + "mlp.";
    const auto layer_norm = [&](const char* ours, const char* theirs) {
      if (theirs != nullptr) norm(gguf + ours, hf + theirs, s.hidden);
    };
    layer_norm("attn_norm", norms.attention);
    if (d.fused_qkv) {
      list.add(gguf + "attn_qkv", attention + "qkv_proj", {q + 2 * kv, s.hidden});
    } else {
      list.add(gguf + "attn_q", attention + "q_proj", {q, s.hidden}, s.qkv_bias, order, s.heads);
      list.add(gguf + "attn_k", attention + "k_proj", {kv, s.hidden}, s.qkv_bias, order,
               s.kv_heads);
      list.add(gguf + "attn_v", attention + "v_proj", {kv, s.hidden}, s.qkv_bias);
    }
    list.add(gguf + "attn_output", attention + "o_proj", {s.hidden, q}, s.proj_bias);
    if (d.sinks) list.add_named(gguf + "attn_sinks.weight", attention + "sinks", {s.heads});
    if (d.head_norms != GgufHeadNorms::kNone) {
      const bool whole = d.head_norms == GgufHeadNorms::kProjection;
      norm(gguf + "attn_q_norm", attention + "q_norm", whole ? q : s.head_size);
      norm(gguf + "attn_k_norm", attention + "k_norm", whole ? kv : s.head_size);
    }
    layer_norm("post_attention_norm", norms.attention_output);
    layer_norm("ffn_norm", norms.mlp);
    if (s.experts > 0) {
      add_gguf_experts(s, gguf, mlp, list);
    } else if (d.fused_mlp) {
      list.add(gguf + "ffn_up", mlp + "gate_up_proj", {2 * s.ffn, s.hidden});
    } else {
      list.add(gguf + "ffn_gate", mlp + "gate_proj", {s.ffn, s.hidden}, s.mlp_bias);
      list.add(gguf + "ffn_up", mlp + "up_proj", {s.ffn, s.hidden}, s.mlp_bias);
    }
    if (s.experts == 0)
      list.add(gguf + "ffn_down", mlp + "down_proj", {s.hidden, s.ffn}, s.mlp_bias);
    layer_norm("post_ffw_norm", norms.mlp_output);
  }
  norm("output_norm", "model.norm", s.hidden);
  if (s.untied) list.add("output", "lm_head", {s.vocab, s.hidden});
  return list.take();
}

} // namespace pentatron::checkpoint
