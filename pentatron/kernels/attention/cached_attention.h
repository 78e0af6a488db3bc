/// Attention of new tokens to all tokens of their sequences, whose keys and values are kept: what
/// generation does at each step.
///
/// Shapes, T = new tokens of all sequences, n = query heads, g = key-value heads (n a multiple of
/// g), d = head size, e = head size of values, at most d; d and e contiguous, tokens and heads
/// strided:
///   q [T, n, d], out [T, n, e]; of each sequence k [length, g, d], v [length, g, e] in pages of
///   `page` tokens, its new tokens the last ones; bias [n, 2 span - 1] in the accumulate type
/// Values may be the first features of keys: the same pages then. With `fp8`, rows of keys and
/// values are those of kernels/quantize/fp8_rows.h, d codes and a scale.
/// The visible keys, window, sinks, cap and bias are those of layers/core_attention.h. Accumulate
/// type: float for fp32, bf16 and fp16, double for fp64 (reference only). The result of a token
/// does not depend on the number of threads nor on the other sequences.
#pragma once

#include "pentatron/kernels/attention/attention.h"

namespace pentatron::kernels {

struct CachedSequence {
  int64_t first = 0;                ///< of its new tokens, in q and out
  int64_t count = 0;                ///< new tokens
  int64_t length = 0;               ///< tokens in k and v, the new ones included
  std::span<const void*const> k, v; ///< pages
};

struct CachedAttention {
  DType dtype = DType::kFloat32;
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_size = 0;
  int64_t value_size = 0; ///< 0: head_size
  std::span<const CachedSequence> sequences;
  HeadsView q, out;                                ///< q is read only
  bool fp8 = false;                                ///< k and v
  int64_t kv_token_stride = 0, kv_head_stride = 0; ///< of a page, in elements
  int64_t page = 0;                                ///< tokens
  double scale = 1;
  int64_t window = 0;          ///< tokens visible, the own one included; 0: all earlier ones
  bool causal = true;          ///< else all keys are visible, none of them of the new tokens
  double cap = 0;              ///< scores s become cap tanh(s / cap); 0: no cap
  const void* sinks = nullptr; ///< [n] in the accumulate type, or none
  const void* bias = nullptr;  ///< added to scores after the cap, or none
  int64_t span = 0;            ///< of the bias: more than any distance

  int64_t head_size_of_values() const { return value_size > 0 ? value_size : head_size; }
};

std::span<const Entry<CachedAttention>> cached_attention_entries();

/// Bytes of Context::workspace.
size_t workspace_bytes(const CachedAttention& args);

/// Runs the first entry that does not refuse. Throws ShapeError for arguments that contradict each
/// other.
void cached_attention(const CachedAttention& args, const Context& context);

} // namespace pentatron::kernels
