#include "pentatron/layers/transformer_layer.h"

#include <ATen/ATen.h>

namespace pentatron::layers {

Norm::Norm(const nn::Scope& scope, int64_t hidden, const nn::NormOptions& options,
           const parallel::TensorParallel& tp)
    : options_(options) {
  const nn::ShardSpec spec{.name = {}, .shape = {hidden}, .placements = parallel::token_wise(tp)};
  weight_ = &scope.param("weight", spec, nn::Init::constant(options.zero_centered ? 0 : 1));
  if (options.kind == kernels::NormKind::kLayerNorm)
    bias_ = &scope.param("bias", spec, nn::Init::constant(0));
}

at::Tensor Norm::forward(const at::Tensor& x, const nn::ForwardContext& ctx) const {
  return nn::norm(x, *weight_, bias_, options_, ctx);
}

std::pair<at::Tensor, at::Tensor> Norm::add_forward(const at::Tensor& x, const at::Tensor& residual,
                                                    const nn::ForwardContext& ctx) const {
  return nn::add_norm(x, residual, *weight_, bias_, options_, ctx);
}

namespace {

std::optional<Norm> make_norm(bool wanted, const nn::Scope& scope,
                              const TransformerLayerOptions& options,
                              const parallel::TensorParallel& tp) {
  if (!wanted) return std::nullopt;
  return Norm(scope, options.attention.hidden, options.norm, tp);
}

std::pair<at::Tensor, at::Tensor> twice(const at::Tensor& x) {
  return {x, x};
}

} // namespace

TransformerLayer::TransformerLayer(const nn::Scope& scope, const TransformerLayerOptions& options,
                                   parallel::TensorParallel tp,
                                   std::shared_ptr<const RotaryTable> rotary)
    : options_(options),
      attention_norm_(make_norm(options.norm_input, scope / "attention_norm", options, tp)),
      attention_(scope / "attention", options.attention, tp, std::move(rotary)),
      attention_output_norm_(
          make_norm(options.norm_output, scope / "attention_output_norm", options, tp)),
      mlp_norm_(make_norm(options.norm_input, scope / "mlp_norm", options, tp)),
      mlp_(scope / "mlp", options.mlp, tp),
      mlp_output_norm_(make_norm(options.norm_output, scope / "mlp_output_norm", options, tp)) {}

at::Tensor TransformerLayer::forward(const at::Tensor& x, const nn::ForwardContext& ctx) const {
  const auto drop = [&](const at::Tensor& branch, uint32_t which) {
    return nn::dropout(branch,
                       {.p = options_.hidden_dropout, .site = options_.dropout_site + which}, ctx);
  };
  const auto normed = [&](const std::optional<Norm>& norm, const at::Tensor& y) {
    return norm ? norm->forward(y, ctx) : y;
  };
  const at::Tensor attended =
      drop(normed(attention_output_norm_, attention_.forward(normed(attention_norm_, x), ctx)), 0);
  const auto [h, input] =
      mlp_norm_ ? mlp_norm_->add_forward(x, attended, ctx) : twice(x + attended);
  return h + drop(normed(mlp_output_norm_, mlp_.forward(input, ctx)), 1);
}

nn::Cost TransformerLayer::cost(const TransformerLayerOptions& o, const nn::LayerShape& shape) {
  nn::Cost cost = Attention::cost(o.attention, shape);
  cost += Mlp::cost(o.mlp, shape);
  const int64_t hidden = o.attention.hidden,
                statistics = o.norm.kind == kernels::NormKind::kLayerNorm ? 2 : 1;
  // Norms keep what they normalise, the first of them the layer's input.
  const int64_t norms = (o.norm_input ? 2 : 0) + (o.norm_output ? 2 : 0);
  cost.saved_bytes += norms * (shape.element_bytes * shape.tokens * hidden +
                               shape.acc_bytes * shape.tokens * statistics);
  return cost;
}

} // namespace pentatron::layers
