#include "pentatron/checkpoint/param_shapes.h"

#include <fmt/format.h>

namespace pentatron::checkpoint {

Shapes param_shapes(const models::GptConfig& c) {
  const int64_t h = c.hidden_size, n = c.num_attention_heads, d = c.head_size();
  const int64_t qkv = (n + 2 * c.query_groups()) * d, ffn = c.ffn_size();
  const int64_t up = c.gated() ? 2 * ffn : ffn;
  Shapes shapes;
  const auto norm = [&](const std::string& name) {
    shapes[name + ".weight"] = {h};
    if (c.normalization == models::Normalization::kLayerNorm) shapes[name + ".bias"] = {h};
  };
  const auto linear = [&](const std::string& name, int64_t out, int64_t in, bool bias) {
    shapes[name + ".weight"] = {out, in};
    if (bias) shapes[name + ".bias"] = {out};
  };
  shapes["embedding.word.weight"] = {c.vocab_size, h};
  if (c.position_embedding_type == models::PositionEmbedding::kLearnedAbsolute)
    shapes["embedding.position.weight"] = {c.max_position_embeddings, h};
  for (int64_t i = 0; i < c.num_layers; ++i) {
    const std::string layer = fmt::format("layers.{}.", i);
    norm(layer + "attention_norm");
    linear(layer + "attention.qkv", qkv, h, c.add_qkv_bias);
    linear(layer + "attention.proj", h, n * d, c.add_attention_proj_bias);
    if (c.qk_layernorm) {
      shapes[layer + "attention.q_norm.weight"] = {d};
      shapes[layer + "attention.k_norm.weight"] = {d};
    }
    if (c.softmax_type == models::SoftmaxType::kLearnable) shapes[layer + "attention.sinks"] = {n};
    norm(layer + "mlp_norm");
    linear(layer + "mlp.fc1", up, h, c.add_mlp_bias);
    linear(layer + "mlp.fc2", h, ffn, c.add_mlp_bias);
  }
  norm("final_norm");
  if (c.untie_embeddings_and_output_weights) shapes["output.weight"] = {c.vocab_size, h};
  return shapes;
}

} // namespace pentatron::checkpoint
