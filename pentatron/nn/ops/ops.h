/// The differentiable operators that layers are made of. Each runs a kernel, records its backward,
/// and brings the gradients of its parameters to Param::accumulate().
///
/// Shapes: activations are [tokens, features] with contiguous rows.
#pragma once

#include <array>
#include <utility>

#include <ATen/core/Tensor.h>

#include "pentatron/kernels/activation/activation.h"
#include "pentatron/kernels/norm/norm.h"
#include "pentatron/nn/context.h"

namespace pentatron::nn {

/// y = x W^T + b. Backward returns dx and queues the weight gradient on ctx.wgrad.
///   x [T, in], weight [out, in], bias [out] or null -> [T, out]
at::Tensor linear(const at::Tensor& x, Param& weight, Param* bias, const ForwardContext& ctx);

/// x + b for every row, where the bias cannot be part of a linear layer.
at::Tensor add_bias(const at::Tensor& x, Param& bias, const ForwardContext& ctx);

struct NormOptions {
  kernels::NormKind kind = kernels::NormKind::kRmsNorm;
  double eps = 1e-5;
  bool zero_centered = false;
};

/// Normalises every row of x [rows, features]; `bias` null for RMSNorm.
at::Tensor norm(const at::Tensor& x, Param& weight, Param* bias, const NormOptions& options,
                const ForwardContext& ctx);

/// (x + residual, norm of it) in one pass.
std::pair<at::Tensor, at::Tensor> add_norm(const at::Tensor& x, const at::Tensor& residual,
                                           Param& weight, Param* bias, const NormOptions& options,
                                           const ForwardContext& ctx);

/// act(x) [T, f] -> [T, f], or gated: x [T, 2 f] (gate | up) -> act(gate) * up [T, f], within
/// `gate`; each row times its number in `row_scale` [T], in the accumulate type, if that is
/// defined.
at::Tensor activation(const at::Tensor& x, kernels::Activation kind, bool gated,
                      const at::Tensor& row_scale = {}, const kernels::GateOptions& gate = {});

/// Each row of x [T, f] times the sigmoid of its number in gate [T, 1].
at::Tensor sigmoid_gate(const at::Tensor& x, const at::Tensor& gate);

/// tanh(x), elementwise.
at::Tensor tanh(const at::Tensor& x);

/// What the rows of a tensor are.
enum class Rows : uint8_t {
  kOuter,     ///< tokens; under sequence parallel this rank's part of them
  kAllTokens, ///< tokens, all of them also under sequence parallel
  kSamples    ///< one for each sample: dropped as its first token would be
};
/// Which dropout of the model, and which features of the full row this rank holds.
struct DropoutSite {
  double p = 0;
  uint32_t site = 0;
  int64_t feature_offset = 0;
  Rows rows = Rows::kOuter;
};
/// x with its dropped elements zero and the rest scaled by 1 / (1 - p); x itself outside training
/// or at p = 0. The mask is a function of (seed, sample, position, site, feature).
at::Tensor dropout(const at::Tensor& x, const DropoutSite& site, const ForwardContext& ctx);

/// Like dropout(), without a derivative and with a key given by the caller. The function is its own
/// backward.
at::Tensor dropout_values(const at::Tensor& x, const DropoutSite& site,
                          const std::array<uint32_t, 2>& key, const at::Tensor& row_ids);
/// The addresses of rows.
at::Tensor dropout_rows(Rows rows, const SequenceLayout& layout);

/// Rows of `table` for token ids [T] int64, plus rows of `positions` (null: none). Ids outside
/// [row_offset, row_offset + rows) give zeros. Lookups of a table's padding row add no gradient.
at::Tensor embedding(const at::Tensor& ids, Param& table, Param* positions, int64_t row_offset,
                     const ForwardContext& ctx);

} // namespace pentatron::nn
