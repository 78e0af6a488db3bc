/// softmax(scale q k^T + bias + mask) v between pairs of a range of queries and a range of keys:
/// self-attention of documents, cross-attention, padding, or a block of ring attention.
///
/// Shapes, T = queries, S = keys, n = query heads, g = key-value heads (n a multiple of g), d =
/// head size, e = head size of values:
///   q [T, n, d], k [S, g, d], v [S, g, e]; strided tokens and heads, d and e contiguous
///   bias [n, 2 span - 1] in the accumulate type, or undefined: column span - 1 + (position of the
///     query - that of the key) is added to a score, after the cap
///   -> out [T, n e], and lse [T, n] in the accumulate type: log of the sum of exp(scores), natural
/// Head i of q attends to head i / (n / g) of k and v. kernels::AttentionPair and AttentionMask say
/// which keys a query sees. Sinks add one term exp(sink) to the softmax's denominator, with no
/// value behind it. A query that sees no key gives out 0 and lse -inf (in a pair with sinks: the
/// sink) and passes no gradient on; a key that no query sees has gradient 0. Both outputs may have
/// a gradient: attention to parts of the keys is merged by lse (Liu et al. 2023, arXiv:2310.01889).
///
/// Dropout is a function of (seed, site, head, the query's ctx.layout->row_ids, the key's position
/// in its sample). The gradient of the bias is summed in an order that does not depend on threads.
/// Source: Dao et al. 2022 (arXiv:2205.14135) for the blocked order; Xiao et al. 2023
/// (arXiv:2309.17453) for sinks; Gemma 2 (arXiv:2408.00118) for the cap; Raffel et al. 2020
/// (arXiv:1910.10683) for the bias.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include <ATen/core/Tensor.h>

#include "pentatron/kernels/attention/attention_pair.h"
#include "pentatron/nn/context.h"

namespace pentatron::layers {

using kernels::AttentionMask;
using kernels::AttentionPair;

enum class SoftmaxKind : uint8_t {
  kVanilla,
  kOffByOne,  ///< a sink of logit 0 for every head
  kLearnable, ///< a learned sink logit for every head
};

struct CoreAttentionOptions {
  AttentionMask mask = AttentionMask::kCausal;
  double scale = 1;
  int64_t window = 0; ///< keys at this distance or more are hidden, in both directions; 0: none
  double cap = 0;     ///< scores s become cap tanh(s / cap); 0: no cap
  SoftmaxKind softmax = SoftmaxKind::kVanilla;
  nn::Param* sinks = nullptr; ///< [n], of kLearnable
  double dropout = 0;         ///< of attention probabilities, in training
  uint32_t site = 0;          ///< dropout site of this layer
  int64_t head_offset = 0;    ///< global number of head 0, for the dropout address
  std::string name;           ///< of the module, in StepState::max_logits
};

struct AttentionOperands {
  at::Tensor q, k, v;
  at::Tensor bias = {};
};

struct AttentionOutputs {
  at::Tensor out, lse;
};

/// Throws ShapeError if pairs overlap or leave the tensors, or the bias has too few columns.
AttentionOutputs core_attention(const AttentionOperands& x, std::span<const AttentionPair> pairs,
                                const CoreAttentionOptions& options, const nn::ForwardContext& ctx);

/// Which implementation runs. On GPUs "gpu_cudnn" (bf16 and fp16 in training: documents of one
/// length without windows; heads of at most 128), "gpu_flash" (bf16 and fp16: everything but
/// dropout, cap, bias and prefix; heads of at most 256) or "gpu_efficient" (fp32: no window
/// either), by LibTorch (varlen_attention.h). On CPUs "kernel" (pentatron's fused kernel:
/// everything but a cap with a bias, heads above 512 and p = 1, in fp32 and narrower types on
/// processors with AVX2) or "flash" (LibTorch's fused kernel: causal attention of equal positions
/// or full attention, no more). Else "blocked" (everything). A gradient of lse makes the backward
/// of all but "kernel" that of "blocked".
const char* core_attention_entry(const AttentionOperands& x, std::span<const AttentionPair> pairs,
                                 const CoreAttentionOptions& options,
                                 const nn::ForwardContext& ctx);

/// Whether attention on GPUs gives equal bits in equal runs (the key `deterministic`); true at
/// first. For all threads of this process.
void set_deterministic_attention(bool deterministic);
bool deterministic_attention();

} // namespace pentatron::layers
