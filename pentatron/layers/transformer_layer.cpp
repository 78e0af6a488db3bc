#include "pentatron/layers/transformer_layer.h"

#include <ATen/ATen.h>

#include <utility>

#include "pentatron/base/error.h"
#include "pentatron/nn/recompute.h"

namespace pentatron::layers {

namespace {

std::optional<Norm> make_norm(bool wanted, const nn::Scope& scope,
                              const TransformerLayerOptions& options,
                              const parallel::TensorParallel& tp) {
  if (!wanted) return std::nullopt;
  return Norm(scope, options.attention.hidden, options.norm, tp);
}

} // namespace

SelfAttention::SelfAttention(const nn::Scope& scope, const AttentionOptions& options,
                             const parallel::TensorParallel& tp,
                             std::shared_ptr<const RotaryTable> rotary,
                             std::shared_ptr<const RelativeBias> bias,
                             const parallel::ContextWay& context)
    : part_([&]() -> std::variant<Attention, LatentAttention> {
        if (!options.latent)
          return Attention(scope, options, tp, std::move(rotary), std::move(bias), context);
        PT_DCHECK(bias == nullptr);
        return LatentAttention(scope, options, tp, std::move(rotary), context);
      }()) {}

at::Tensor SelfAttention::forward(const at::Tensor& x, const nn::ForwardContext& ctx) const {
  return std::visit([&](const auto& part) { return part.forward(x, ctx); }, part_);
}

FeedForward::FeedForward(const nn::Scope& scope, const TransformerLayerOptions& options,
                         const parallel::TensorParallel& tp,
                         const parallel::ExpertParallel& experts)
    : part_(options.moe
                ? std::variant<Mlp, Moe>(std::in_place_type<Moe>, scope, *options.moe, tp, experts)
                : std::variant<Mlp, Moe>(std::in_place_type<Mlp>, scope, options.mlp, tp)) {}

at::Tensor FeedForward::forward(const at::Tensor& x, const nn::ForwardContext& ctx) const {
  if (const Moe* const moe = std::get_if<Moe>(&part_)) return moe->forward(x, ctx);
  const auto run = [mlp = std::get_if<Mlp>(&part_)](const std::vector<at::Tensor>& in,
                                                    const nn::ForwardContext& c) {
    return std::vector<at::Tensor>{mlp->forward(in[0], c)};
  };
  return nn::run_part(nn::Part::kMlp, run, {x}, ctx)[0];
}

template <class Branch>
template <class... Args>
TransformerLayer::Normed<Branch>::Normed(const nn::Scope& scope, const std::string& name,
                                         const TransformerLayerOptions& options,
                                         const parallel::TensorParallel& tp, Args&&... args)
    : input(make_norm(options.norm_input, scope / (name + "_norm"), options, tp)),
      branch(scope / name, std::forward<Args>(args)...),
      output(make_norm(options.norm_output, scope / (name + "_output_norm"), options, tp)),
      residual(make_norm(options.norm_residual, scope / (name + "_residual_norm"), options, tp)) {}

TransformerLayer::TransformerLayer(const nn::Scope& scope, const TransformerLayerOptions& options,
                                   parallel::TensorParallel tp,
                                   std::shared_ptr<const RotaryTable> rotary,
                                   std::shared_ptr<const RelativeBias> bias,
                                   const parallel::ExpertParallel& experts,
                                   const parallel::ContextWay& context)
    : options_(options), attention_(scope, "attention", options, tp, options.attention, tp,
                                    std::move(rotary), std::move(bias), context),
      cross_(options.cross
                 ? std::optional<Normed<CrossAttention>>(std::in_place, scope, "cross_attention",
                                                         options, tp, *options.cross, tp)
                 : std::nullopt),
      mlp_(scope, "mlp", options, tp, options, tp, experts) {}

/// The sum of the branches so far. A branch is added in one pass with the norm that follows.
class TransformerLayer::Sum {
 public:
  Sum(const at::Tensor& x, const nn::ForwardContext& ctx) : x_(x), ctx_(ctx) {}

  /// The input of a branch.
  at::Tensor normed(const std::optional<Norm>& norm) {
    if (!norm || !branch_.defined()) {
      settle();
      return norm ? made_again(*norm, norm->forward(x_, ctx_)) : x_;
    }
    auto [sum, y] = norm->add_forward(x_, branch_, ctx_);
    x_ = std::move(sum);
    branch_ = at::Tensor();
    return made_again(*norm, y);
  }
  void add(const at::Tensor& branch, const std::optional<Norm>& residual) {
    branch_ = branch;
    if (!residual) return;
    const auto [sum, y] = residual->add_forward(x_, branch_, ctx_);
    x_ = sum;
    x_ = made_again(*residual, y);
    branch_ = at::Tensor();
  }
  at::Tensor result() {
    settle();
    return x_;
  }

 private:
  /// y, the norm of x_, which can come from x_ again.
  at::Tensor made_again(const Norm& norm, const at::Tensor& y) const {
    const auto run = [&norm](const std::vector<at::Tensor>& in, const nn::ForwardContext& c) {
      return std::vector<at::Tensor>{norm.forward(in[0], c)};
    };
    if (ctx_.recomputed.has(nn::Part::kNorm)) nn::make_again({y}, run, {x_}, ctx_);
    return y;
  }
  void settle() {
    if (branch_.defined()) x_ = x_ + branch_;
    branch_ = at::Tensor();
  }

  at::Tensor x_, branch_;
  const nn::ForwardContext& ctx_;
};

at::Tensor TransformerLayer::run(const at::Tensor& x, const at::Tensor& memory,
                                 const nn::SequenceLayout* memory_layout,
                                 const nn::ForwardContext& ctx) const {
  Sum sum(x, ctx);
  const auto add = [&](const auto& part, uint32_t site, auto&& branch) {
    at::Tensor y = branch(sum.normed(part.input));
    if (part.output) y = part.output->forward(y, ctx);
    sum.add(nn::dropout(y, {.p = options_.hidden_dropout, .site = site}, ctx), part.residual);
  };
  add(attention_, options_.dropout_site,
      [&](const at::Tensor& input) { return attention_.branch.forward(input, ctx); });
  if (cross_) {
    add(*cross_, options_.cross_dropout_site, [&](const at::Tensor& input) {
      return cross_->branch.forward(input, memory, *memory_layout, ctx);
    });
  }
  add(mlp_, options_.dropout_site + 1,
      [&](const at::Tensor& input) { return mlp_.branch.forward(input, ctx); });
  return sum.result();
}

at::Tensor TransformerLayer::forward(const at::Tensor& x, const nn::ForwardContext& ctx) const {
  PT_DCHECK(!cross_);
  return run(x, {}, nullptr, ctx);
}

at::Tensor TransformerLayer::forward(const at::Tensor& x, const at::Tensor& memory,
                                     const nn::SequenceLayout& memory_layout,
                                     const nn::ForwardContext& ctx) const {
  PT_DCHECK(cross_.has_value());
  return run(x, memory, &memory_layout, ctx);
}

nn::Cost TransformerLayer::cost(const TransformerLayerOptions& o, const nn::LayerShape& shape) {
  nn::Cost cost = o.attention.latent ? LatentAttention::cost(o.attention, shape)
                                     : Attention::cost(o.attention, shape);
  if (o.norm_input) cost.input_gemm_flops = 0; // behind a norm
  if (o.cross) cost += CrossAttention::cost(*o.cross, shape);
  cost += o.moe ? Moe::cost(*o.moe, shape) : Mlp::cost(o.mlp, shape);
  const int64_t hidden = o.attention.hidden,
                statistics = o.norm.kind == kernels::NormKind::kLayerNorm ? 2 : 1;
  // Norms keep what they normalise, the first of them the layer's input.
  const int64_t norms =
      (o.cross ? 3 : 2) * (static_cast<int64_t>(o.norm_input) + o.norm_output + o.norm_residual);
  const int64_t rows = shape.outer_tokens(), tokens = shape.element_bytes * rows * hidden;
  cost.saved_bytes += norms * (tokens + shape.acc_bytes * rows * statistics);
  // What they give is a branch's input, or of the last residual sum the next layer's.
  const int64_t branches = o.cross ? 3 : 2;
  cost.mlp_working_bytes += tokens; // the gradient of the residual sum
  cost.attention_working_bytes += tokens;
  cost.bytes_of(nn::Part::kNorm) =
      (branches * o.norm_input + (branches - 1) * o.norm_residual) * tokens;
  // A norm behind the branch keeps what the branch gives.
  if (o.norm_output) cost.bytes_of(o.moe ? nn::Part::kMoe : nn::Part::kMlp) += tokens;
  return cost;
}

} // namespace pentatron::layers
