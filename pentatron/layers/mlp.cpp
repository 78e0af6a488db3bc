#include "pentatron/layers/mlp.h"

#include <algorithm>
#include <vector>

#include <ATen/ATen.h>

#include "pentatron/base/planted_bug.h"
#include "pentatron/nn/recompute.h"

namespace pentatron::layers {

namespace {

parallel::ColumnParallelLinear::Options fc1_options(const MlpOptions& o) {
  std::vector<nn::FusedPart> parts = {{"up", o.ffn, 1}};
  if (o.gated) parts.insert(parts.begin(), {"gate", o.ffn, 1});
  return {.in = o.hidden, .parts = parts, .bias = o.bias, .init_std = o.init_std};
}

/// What is in use for a while: for tokens, and for weights.
struct WorkingBytes {
  int64_t tokens = 0, weights = 0;
};

/// Adds what backward holds: `held` for each token, and what a linear layer in low precision makes
/// beside its results, for the gradient of its input, then of its weight.
void add_moments(std::vector<WorkingBytes>& moments, int64_t tokens, int64_t in, int64_t out,
                 const nn::QuantisedBytes& q, int64_t held) {
  const int64_t wide = q.transformed + q.values;
  moments.push_back(
      {.tokens = tokens * (held + q.values * out + q.sum * in), .weights = q.values * in * out});
  moments.push_back({.tokens = tokens * (held + wide * out)});
  moments.push_back({.tokens = tokens * (held + q.values * out + wide * in)});
  moments.push_back(
      {.tokens = tokens * (held + q.values * (out + in)), .weights = q.product * in * out});
}

} // namespace

Mlp::Mlp(const nn::Scope& scope, const MlpOptions& options, parallel::TensorParallel tp)
    : options_(options), dropout_{.p = options.dropout,
                                  .site = options.dropout_site,
                                  .feature_offset = planted("mlp_dropout_by_local_feature")
                                                        ? 0
                                                        : tp.rank() * (options.ffn / tp.size()),
                                  .rows = nn::Rows::kAllTokens},
      fc1_(scope / "fc1", fc1_options(options), tp), fc2_(scope / "fc2",
                                                          {.in = options.ffn,
                                                           .out = options.hidden,
                                                           .bias = options.bias,
                                                           .init_std = options.proj_init_std},
                                                          tp) {}

at::Tensor Mlp::forward(const at::Tensor& x, const nn::ForwardContext& ctx) const {
  using Tensors = std::vector<at::Tensor>;
  const auto activate = [this](const Tensors& in, const nn::ForwardContext& c) {
    const at::Tensor active =
        nn::activation(in[0], options_.activation, options_.gated, {}, options_.gate);
    return Tensors{nn::dropout(active, dropout_, c)};
  };
  const Tensors up = {fc1_.forward(x, ctx)};
  return fc2_.forward(nn::run_part(nn::Part::kMlpActivation, activate, up, ctx)[0], ctx);
}

nn::Cost Mlp::cost(const MlpOptions& o, const nn::LayerShape& shape) {
  const int64_t t = shape.tokens, f = o.ffn / shape.tp, up = o.gated ? 2 * f : f;
  nn::Cost cost;
  cost.forward_gemm_flops =
      2.0 * static_cast<double>(t) * static_cast<double>(o.hidden) * static_cast<double>(up + f);
  cost.saved_bytes = shape.element_bytes * (shape.outer_tokens() * o.hidden + t * (up + f));
  // The gradient of the activation's result; that of its input takes the place of the input. Under
  // sequence parallelism tokens are gathered again: gradients of results, inputs and their
  // gradients.
  cost.mlp_working_bytes = shape.element_bytes * t *
                           (shape.gathers_again() ? std::max(f + o.hidden, 2 * o.hidden - f) : f);
  if (const nn::QuantisedBytes& q = shape.quantised; q.values > 0) {
    // Of the second layer; then of the first, when what the second has kept is free.
    std::vector<WorkingBytes> moments;
    add_moments(moments, t, f, o.hidden, q, shape.element_bytes * f);
    add_moments(moments, t, o.hidden, up, q, shape.element_bytes * (o.hidden - f));
    const WorkingBytes most = *std::ranges::max_element(moments, {}, [&](const WorkingBytes& one) {
      return q.shapes * static_cast<double>(one.tokens) + static_cast<double>(one.weights);
    });
    cost.mlp_working_bytes = std::max(cost.mlp_working_bytes, most.tokens);
    cost.mlp_weight_bytes = most.weights;
  }
  cost.bytes_of(nn::Part::kMlpActivation) = shape.element_bytes * t * f;
  cost.bytes_of(nn::Part::kMlp) = shape.element_bytes * t * (up + f);
  cost.flops_of(nn::Part::kMlp) = cost.forward_gemm_flops;
  if (shape.tp > 1) cost.tp_all_reduce = {2 * shape.element_bytes * t * o.hidden, 2};
  return cost;
}

} // namespace pentatron::layers
