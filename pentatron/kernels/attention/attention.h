/// Attention without storing the scores: out = dropout(softmax(scale q k^T + bias + mask)) v,
/// between pairs of a range of queries and a range of keys.
///
/// Shapes, T = queries, S = keys, n = query heads, g = key-value heads (n a multiple of g), d =
/// head size, e = head size of values:
///   q, dq [T, n, d]; out, dout [T, n, e]; k, dk [S, g, d]; v, dv [S, g, e]; d and e contiguous,
///   tokens and heads strided
///   lse, dlse [n, T]: log of the sum of exp(scores), natural; kept by the forward for the backward
///   bias, dbias [n, 2 span - 1]: column span - 1 + (position of the query - that of the key)
/// Head i of q attends to head i / (n / g) of k and v. AttentionPair and AttentionMask say which
/// keys a query sees. With a cap c, a score s = scale q k becomes c tanh(s / c) before the bias is
/// added (Gemma 2, arXiv:2408.00118). Sinks add exp(sink) of the head to the denominator, with no
/// value behind it. A query of a pair that sees no key gets out 0 and lse -inf (or the sink), and
/// gives no gradient to others. Rows of queries and keys in no pair are not written.
///
/// Accumulate type: float for fp32 and bf16 (entries with bf16 instructions round probabilities to
/// bf16 before their products with bf16 values), double for fp64 (reference only). The result does
/// not depend on the number of threads: (pair, key-value head) are independent, and so are blocks
/// of queries in the forward; gradients of sinks and bias are summed in the order of the pairs. A
/// value that is not finite may reach queries of its pair that do not see it, as 0 times it, but no
/// other pair. Source: Dao et al. 2022 (arXiv:2205.14135), algorithms 1 and 4; Xiao et al.
/// 2023 (arXiv:2309.17453) for sinks.
#pragma once

#include <array>

#include "pentatron/kernels/attention/attention_pair.h"
#include "pentatron/kernels/contract.h"

namespace pentatron::kernels {

/// A [T, heads, d] tensor: pointer to the first element and strides in elements.
struct HeadsView {
  void* data = nullptr;
  int64_t token_stride = 0;
  int64_t head_stride = 0;
};

/// Dropout of probabilities by global address (kernels/dropout/dropout.h): the row is that of the
/// query, the feature feature(head, position of the key in its sample).
struct AttentionDropout {
  /// Features of a head: more than there are positions.
  static constexpr int64_t kHeadStride = int64_t{1} << 24;

  double p = 0;                     ///< 0: none
  std::array<uint32_t, 2> key = {}; ///< of the stream "attention_dropout"
  uint32_t site = 0;
  const uint64_t* row_ids = nullptr; ///< [T]
  int64_t first_head = 0;            ///< global number of head 0

  int64_t feature(int64_t head, int64_t key_position) const {
    return (first_head + head) * kHeadStride + key_position;
  }
};

struct AttentionShape {
  DType dtype = DType::kFloat32;
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_size = 0;
  int64_t value_size = 0; ///< head size of v and out; 0: head_size
  int64_t queries = 0;    ///< T
  std::span<const AttentionPair> pairs;
  AttentionMask mask = AttentionMask::kCausal;
  double scale = 1;            ///< positive
  double cap = 0;              ///< 0: none
  int64_t window = 0;          ///< keys at this distance or more are hidden; 0: none
  const void* sinks = nullptr; ///< [n] in the accumulate type, or none
  const void* bias = nullptr;  ///< [n, 2 span - 1] in the accumulate type, or none
  int64_t span = 0;            ///< of bias: above every distance of a query and a key of a pair
  AttentionDropout dropout = {};

  int64_t head_size_of_values() const { return value_size > 0 ? value_size : head_size; }
};

struct AttentionForward {
  AttentionShape shape;
  HeadsView q, k, v; ///< read only
  HeadsView out;
  void* lse = nullptr; ///< in the accumulate type
  /// [n] in the accumulate type, or none: raised to the largest scale * q k of each head among the
  /// keys that queries see. Without sinks, bias and cap.
  void* max_logits = nullptr;
};

struct AttentionBackward {
  AttentionShape shape;
  HeadsView q, k, v, out, dout; ///< read only
  const void* lse = nullptr;
  const void* dlse = nullptr; ///< the gradient of lse in the accumulate type, or none
  HeadsView dq, dk, dv;       ///< written, not added to
  void* dsinks = nullptr;     ///< [n] in the accumulate type, written; needed if there are sinks
  void* dbias = nullptr;      ///< as bias, written; needed if there is a bias
};

std::span<const Entry<AttentionForward>> attention_forward_entries();
std::span<const Entry<AttentionBackward>> attention_backward_entries();

/// True if an implementation faster than the reference takes the shape, and the reference is not
/// chosen for its class; callers use LibTorch otherwise.
bool attention_supported(const AttentionShape& shape, const Context& context = {});

/// Run the first entry that does not refuse. Throw ShapeError for contradicting arguments or if
/// every entry refuses.
void attention_forward(const AttentionForward& args, const Context& context = {});
void attention_backward(const AttentionBackward& args, const Context& context = {});

/// The scalar definition of correct: sums in double, any type.
void attention_forward_reference(const AttentionForward& args, const Context& context);
void attention_backward_reference(const AttentionBackward& args, const Context& context);

} // namespace pentatron::kernels
