#include "pentatron/layers/mlp.h"

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
  cost.bytes_of(nn::Part::kMlpActivation) = shape.element_bytes * t * f;
  cost.bytes_of(nn::Part::kMlp) = shape.element_bytes * t * (up + f);
  cost.flops_of(nn::Part::kMlp) = cost.forward_gemm_flops;
  if (shape.tp > 1) cost.tp_all_reduce = {2 * shape.element_bytes * t * o.hidden, 2};
  return cost;
}

} // namespace pentatron::layers
