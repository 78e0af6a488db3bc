/// The implementations behind core_attention(): forward keeps (out, lse), backward gives dq, dk, dv
/// in the shapes of q, k, v.
#pragma once

#include <ATen/core/Tensor.h>

#include "pentatron/layers/core_attention.h"

namespace pentatron::layers::detail {

struct AttentionInputs {
  at::Tensor q, k, v; // [T, n, d], [T, g, d], [T, g, d]
  std::vector<int64_t> documents;
  int64_t batch = 0, sequence = 0;
  CoreAttentionOptions options;
  at::Tensor row_ids; // dropout addresses; undefined: no dropout
  uint64_t seed = 0;
};

struct AttentionResult {
  at::Tensor out; // [T, n, d] contiguous
  at::Tensor lse; // layout private to the implementation
};

struct AttentionGradients {
  at::Tensor dq, dk, dv;
  at::Tensor dsinks; // [n], or undefined
};

/// Scores under the cap of `options`, in place.
at::Tensor& cap_(at::Tensor& scores, const CoreAttentionOptions& options);
/// Sink logits [n, 1] in the accumulate type, or undefined.
at::Tensor sink_logits(const at::Tensor& q, const CoreAttentionOptions& options);

bool kernel_supports(const at::Tensor& q, const CoreAttentionOptions& options);
AttentionResult kernel_forward(const AttentionInputs& in);
AttentionGradients kernel_backward(const AttentionInputs& in, const AttentionResult& saved,
                                   const at::Tensor& dout);

AttentionResult flash_forward(const AttentionInputs& in);
AttentionGradients flash_backward(const AttentionInputs& in, const AttentionResult& saved,
                                  const at::Tensor& dout);

AttentionResult blocked_forward(const AttentionInputs& in);
AttentionGradients blocked_backward(const AttentionInputs& in, const AttentionResult& saved,
                                    const at::Tensor& dout);

} // namespace pentatron::layers::detail
