/// softmax(q k^T scale + mask) v within documents.
///
/// Shapes, T = tokens, n = query heads, g = key-value heads (n a multiple of g), d = head size:
///   q [T, n, d], k [T, g, d], v [T, g, d]; strided tokens and heads, d contiguous -> [T, n d]
/// Head i of q attends to head i / (n / g) of k and v. Causal: token i sees j <= i of its document,
/// with a window i - j < window. Sinks add one term exp(sink) to the softmax's denominator, with no
/// value behind it. Source: Dao et al. 2022 (arXiv:2205.14135) for the blocked order; Xiao et al.
/// 2023 (arXiv:2309.17453) for sinks; Gemma 2 (arXiv:2408.00118) for the cap.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "pentatron/nn/context.h"

namespace pentatron::layers {

enum class SoftmaxKind : uint8_t {
  kVanilla,
  kOffByOne,  ///< a sink of logit 0 for every head
  kLearnable, ///< a learned sink logit for every head
};

struct CoreAttentionOptions {
  double scale = 1;
  int64_t window = 0; ///< tokens visible, the own one included; 0: all earlier ones
  double cap = 0;     ///< scores s become cap tanh(s / cap); 0: no cap
  SoftmaxKind softmax = SoftmaxKind::kVanilla;
  nn::Param* sinks = nullptr; ///< [n], of kLearnable
  double dropout = 0;         ///< of attention probabilities, in training
  uint32_t site = 0;          ///< dropout site of this layer
  int64_t head_offset = 0;    ///< global number of head 0, for the dropout address
};

at::Tensor core_attention(const at::Tensor& q_tnd, const at::Tensor& k_tgd, const at::Tensor& v_tgd,
                          const CoreAttentionOptions& options, const nn::ForwardContext& ctx);

/// Which implementation runs: "kernel" (pentatron's fused kernel: everything but dropout and the
/// cap, on processors with AVX2), "flash" (LibTorch's fused kernel: plain causal attention) or
/// "blocked" (everything).
const char* core_attention_entry(const at::Tensor& q_tnd, const CoreAttentionOptions& options,
                                 const nn::ForwardContext& ctx);

} // namespace pentatron::layers
