/// The implementations of core_attention(): forward gives (out, lse), backward dq, dk, dv in
/// the shapes of q, k, v.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "pentatron/kernels/attention/attention.h"
#include "pentatron/layers/core_attention.h"

namespace pentatron::layers::detail {

struct AttentionInputs {
  at::Tensor q, k, v;               // [T, n, d], [S, g, d], [S, g, e]
  at::Tensor bias;                  // [n, 2 span - 1], contiguous, or undefined
  std::vector<AttentionPair> pairs; // with queries and keys
  int64_t sequence = 0;             // of the queries' layout
  CoreAttentionOptions options;
  at::Tensor row_ids; // dropout addresses of queries; undefined: no dropout
  uint64_t seed = 0;
  /// [n] in the accumulate type, raised to the largest logits (StepState::max_logits); undefined:
  /// not needed.
  at::Tensor max_logits = {};
  std::vector<AttentionPair> real_pairs = {}; ///< those of logits; empty: `pairs`
  bool training = false; ///< such calls come again, so that preparing for them pays

  int64_t span() const { return bias.defined() ? (bias.size(1) + 1) / 2 : 0; }
};

struct AttentionResult {
  at::Tensor out; // [T, n, e] contiguous
  at::Tensor lse; // [n, T] contiguous, in the accumulate type
};

struct AttentionGradients {
  at::Tensor dq, dk, dv;
  at::Tensor dsinks; // [n], or undefined
  at::Tensor dbias;  // as bias, or undefined
};

/// What arrives in backward; undefined: nothing.
struct OutputGradients {
  at::Tensor out;      // [T, n, e] contiguous
  at::Tensor lse = {}; // [n, T] contiguous
};

/// Results of queries in no pair, and gradients of queries and keys in no pair, are already there;
/// what pairs have is not initialised.
AttentionResult make_result(const AttentionInputs& in);
AttentionGradients make_gradients(const AttentionInputs& in);

/// The dropout of an input with row_ids.
kernels::AttentionDropout dropout_of(const AttentionInputs& in);
/// Scores under the cap of `options`, in place.
at::Tensor& cap_(at::Tensor& scores, const CoreAttentionOptions& options);
/// Sink logits [n, 1] in the accumulate type, or undefined.
at::Tensor sink_logits(const at::Tensor& q, const CoreAttentionOptions& options);
/// The bias [n, queries, keys] of queries from position `query` on and keys from position `key` on.
at::Tensor bias_block(const at::Tensor& bias, int64_t query, int64_t queries, int64_t key,
                      int64_t keys);

/// By the first implementation that accepts the inputs; both directions choose the same.
AttentionResult attention_forward(const AttentionInputs& in);
AttentionGradients attention_backward(const AttentionInputs& in, const AttentionResult& saved,
                                      const OutputGradients& d);

/// Raises in.max_logits in a separate pass over blocks of queries.
void raise_max_logits(const AttentionInputs& in);

bool kernel_accepts(const AttentionInputs& in);
/// Whether its forward raises in.max_logits.
bool kernel_knows_logits(const AttentionInputs& in);
AttentionResult kernel_forward(const AttentionInputs& in);
AttentionGradients kernel_backward(const AttentionInputs& in, const AttentionResult& saved,
                                   const OutputGradients& d);

/// Its backward does not take a gradient of lse.
bool flash_accepts(const AttentionInputs& in);
AttentionResult flash_forward(const AttentionInputs& in);
AttentionGradients flash_backward(const AttentionInputs& in, const AttentionResult& saved,
                                  const OutputGradients& d);

AttentionResult blocked_forward(const AttentionInputs& in);
AttentionGradients blocked_backward(const AttentionInputs& in, const AttentionResult& saved,
                                    const OutputGradients& d);

} // namespace pentatron::layers::detail
