/// Self-attention of a transformer layer: fused q|k|v projection, optional q/k norms, rotary
/// positions, an optional bias by distance, core attention within the documents and real tokens of
/// the layout, output projection.
///
/// Shapes, T = tokens, h = hidden, n = heads, g = key-value heads, d = head size, t = tp size:
///   forward x [T, h] -> [T, h], under sequence parallel [T / t, h]; inside, a rank holds n / t
///   query heads and g / t key-value heads, or one that t / g neighbours share.
/// Collectives: those of ColumnParallelLinear, RowParallelLinear and HeadsNorm; with a cut layout
/// those of context_attention.
/// Throws ConfigError if t does not divide n, or neither of g and t the other.
/// Source: Ainslie et al. 2023 (arXiv:2305.13245) for grouped queries.
#pragma once

#include <memory>
#include <optional>

#include "pentatron/layers/attention_options.h"
#include "pentatron/layers/heads_norm.h"
#include "pentatron/layers/relative_bias.h"
#include "pentatron/layers/rotary.h"
#include "pentatron/nn/cost.h"
#include "pentatron/nn/ops/ops.h"
#include "pentatron/parallel/context/context_parallel.h"
#include "pentatron/parallel/tensor/linear.h"

namespace pentatron::layers {

class Attention {
 public:
  /// `rotary` and `bias` (null: none) are shared by the layers of a model; `rotary` is filled
  /// before the first forward. `context`: of layouts that are cut; these have no bias.
  Attention(const nn::Scope& scope, const AttentionOptions& options, parallel::TensorParallel tp,
            std::shared_ptr<const RotaryTable> rotary,
            std::shared_ptr<const RelativeBias> bias = nullptr, parallel::ContextWay context = {});
  at::Tensor forward(const at::Tensor& x, const nn::ForwardContext& ctx) const;
  static nn::Cost cost(const AttentionOptions& options, const nn::LayerShape& shape);

 private:
  struct Heads {
    at::Tensor q, k, v;
  };
  Heads split(const at::Tensor& qkv, const nn::ForwardContext& ctx) const;
  at::Tensor attend(const Heads& heads, const nn::ForwardContext& ctx) const;

  AttentionOptions options_;
  int64_t local_heads_ = 0, local_kv_heads_ = 0;
  std::shared_ptr<const RotaryTable> rotary_;
  std::shared_ptr<const RelativeBias> bias_;
  parallel::ContextWay context_;
  parallel::ColumnParallelLinear qkv_;
  parallel::RowParallelLinear proj_;
  std::optional<HeadsNorm> q_norm_, k_norm_;
  CoreAttentionOptions core_;
};

} // namespace pentatron::layers
