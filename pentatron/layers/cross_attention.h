/// Cross-attention of a transformer layer: queries from x, keys and values from a memory with its
/// own layout (an encoder's output), core attention, output projection.
///
/// Shapes, T = tokens, M = tokens of the memory, h = hidden, m = width of the memory, n = heads, g
/// = key-value heads, d = head size, t = tp size:
///   forward x [T, h], memory [M, m] -> [T, h], under sequence parallel x, memory and result hold
///   the rank's T / t and M / t tokens; inside, a rank holds n / t and g / t heads, as Attention
/// Collectives: those of ColumnParallelLinear (two: q, and k | v) and RowParallelLinear.
/// Source: Vaswani et al. 2017 (arXiv:1706.03762) sec. 3.2.3.
#pragma once

#include "pentatron/layers/core_attention.h"
#include "pentatron/nn/cost.h"
#include "pentatron/parallel/tensor/linear.h"

namespace pentatron::layers {

struct CrossAttentionOptions {
  int64_t hidden = 0;
  int64_t memory = 0; ///< width of the memory; 0: hidden
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_size = 0;
  bool qkv_bias = false;
  bool proj_bias = false;
  double scale = 0; ///< of the scores; 0: 1 / sqrt(head_size)
  double dropout = 0;
  uint32_t dropout_site = 0;
  double init_std = 0.02;
  double proj_init_std = 0.02;
};

class CrossAttention {
 public:
  /// Keys and values of a memory; they may be used by several calls of attend().
  struct Memory {
    at::Tensor k, v; ///< [M, g / t, d]
  };

  CrossAttention(const nn::Scope& scope, const CrossAttentionOptions& options,
                 parallel::TensorParallel tp);
  /// Tokens of a document of ctx.layout see the real ones of that document in `memory_layout`.
  at::Tensor forward(const at::Tensor& x, const at::Tensor& memory,
                     const nn::SequenceLayout& memory_layout, const nn::ForwardContext& ctx) const;
  /// The two halves of forward().
  Memory keys_and_values(const at::Tensor& memory, const nn::ForwardContext& ctx) const;
  at::Tensor attend(const at::Tensor& x, const Memory& memory,
                    const nn::SequenceLayout& memory_layout, const nn::ForwardContext& ctx) const;
  static nn::Cost cost(const CrossAttentionOptions& options, const nn::LayerShape& shape);

 private:
  /// In generation: keys and values of new memories are kept.
  at::Tensor generate(const at::Tensor& x, const at::Tensor& memory,
                      const nn::ForwardContext& ctx) const;

  CrossAttentionOptions options_;
  parallel::ColumnParallelLinear q_, kv_;
  parallel::RowParallelLinear proj_;
  CoreAttentionOptions core_;
};

} // namespace pentatron::layers
