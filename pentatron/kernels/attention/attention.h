/// Causal attention within documents, without storing the scores: out = softmax(scale q k^T + mask)
/// v.
///
/// Shapes, T = tokens, n = query heads, g = key-value heads (n a multiple of g), d = head size:
///   q, out, dout, dq [T, n, d]; k, v, dk, dv [T, g, d]; d contiguous, tokens and heads strided
///   lse [n, T]: log of the sum of exp(scores), natural; kept by the forward for the backward
/// Head i of q attends to head i / (n / g) of k and v. Token i sees token j of its document if i -
/// window < j <= i. Sinks add exp(sink) of the head to the denominator, with no value behind it.
///
/// Accumulate type: float for fp32 and bf16 (entries with bf16 instructions round probabilities to
/// bf16 before their products with bf16 values), double for fp64 (reference only). The result does
/// not depend on the number of threads: (document, key-value head) pairs are independent, and so
/// are blocks of queries in the forward. A value that is not finite may reach tokens of its
/// document that do not see it, as 0 times it, but no other document. Source: Dao et al. 2022
/// (arXiv:2205.14135), algorithms 1 and 4; Xiao et al. 2023 (arXiv:2309.17453) for sinks.
#pragma once

#include "pentatron/kernels/contract.h"

namespace pentatron::kernels {

/// A [T, heads, d] tensor: pointer to the first element and strides in elements.
struct HeadsView {
  void* data = nullptr;
  int64_t token_stride = 0;
  int64_t head_stride = 0;
};

struct AttentionShape {
  DType dtype = DType::kFloat32;
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_size = 0;
  std::span<const int64_t>
      documents;               ///< first token of each document, then T: {0, ..., T}, not falling
  double scale = 1;            ///< positive
  int64_t window = 0;          ///< tokens visible, the own one included; 0: all earlier ones
  const void* sinks = nullptr; ///< [n] in the accumulate type, or none
};

struct AttentionForward {
  AttentionShape shape;
  HeadsView q, k, v; ///< read only
  HeadsView out;
  void* lse = nullptr; ///< [n, T] in the accumulate type
};

struct AttentionBackward {
  AttentionShape shape;
  HeadsView q, k, v, out, dout; ///< read only
  const void* lse = nullptr;
  HeadsView dq, dk, dv;   ///< written, not added to
  void* dsinks = nullptr; ///< [n] in the accumulate type, written; needed if there are sinks
};

std::span<const Entry<AttentionForward>> attention_forward_entries();
std::span<const Entry<AttentionBackward>> attention_backward_entries();

/// True if an implementation faster than the reference takes the shape; callers use LibTorch
/// otherwise.
bool attention_supported(const AttentionShape& shape, const Context& context = {});

/// Run the first entry that does not refuse. Throw ShapeError for contradicting arguments or if
/// every entry refuses.
void attention_forward(const AttentionForward& args, const Context& context = {});
void attention_backward(const AttentionBackward& args, const Context& context = {});

/// The scalar definition of correct: sums in double, any type but float16.
void attention_forward_reference(const AttentionForward& args, const Context& context);
void attention_backward_reference(const AttentionBackward& args, const Context& context);

} // namespace pentatron::kernels
