#include "pentatron/layers/moe.h"

#include <ATen/ATen.h>

namespace pentatron::layers {

namespace {

/// Where a rank's experts are.
nn::Coordinates expert_coordinates(const parallel::ExpertParallel& e) {
  return {{"ep", {e.group.rank() / e.etp, e.ep()}}, {"etp", {e.group.rank() % e.etp, e.etp}}};
}

/// A parameter of all experts: dimension 0 over ep, `split` over etp; -1: the first rank of etp
/// adds it for all.
nn::Param& expert_param(const nn::Scope& scope, const std::string& name, nn::ShardSpec spec,
                        int split, nn::Init init) {
  spec.stacked_dims = 1;
  spec.placements = {{"ep", nn::Placement::shard(0)}};
  spec.placements["etp"] = split >= 0 ? nn::Placement::shard(split) : nn::Placement::partial();
  nn::Param& param = scope.param(name, std::move(spec), init);
  param.group = nn::ReductionGroup::kExpert;
  return param;
}

} // namespace

Moe::Moe(const nn::Scope& scope, const MoeOptions& o, parallel::TensorParallel tp,
         const parallel::ExpertParallel& experts)
    : options_(o), tp_(std::move(tp)), experts_(experts) {
  const int64_t e = o.router.experts, h = o.expert.hidden, f = o.expert.ffn;
  // Each rank routes tokens of its own, with and without sequence parallel.
  const nn::ShardSpec router{
      .name = {}, .shape = {e, h}, .placements = {{"tp", nn::Placement::partial()}}};
  router_ = &scope.param("router.weight", router, nn::Init::normal(o.expert.init_std));
  if (o.router_bias)
    router_bias_ = &scope.param(
        "router.bias", {.name = {}, .shape = {e}, .placements = {{"tp", nn::Placement::partial()}}},
        nn::Init::constant(0));

  std::vector<nn::FusedPart> parts = {{"up", f, 1}};
  if (o.expert.gated) parts.insert(parts.begin(), {"gate", f, 1});
  const int64_t up = o.expert.gated ? 2 * f : f;
  const nn::Scope here = scope.at(expert_coordinates(experts_)) / "experts";
  fc1_ = &expert_param(here, "fc1.weight",
                       {.name = {}, .shape = {e, up, h}, .parts = parts, .parts_dim = 1}, 1,
                       nn::Init::normal(o.expert.init_std));
  fc2_ = &expert_param(here, "fc2.weight", {.name = {}, .shape = {e, h, f}}, 2,
                       nn::Init::normal(o.expert.proj_init_std));
  if (o.expert.bias) {
    fc1_bias_ = &expert_param(here, "fc1.bias",
                              {.name = {}, .shape = {e, up}, .parts = parts, .parts_dim = 1}, 1,
                              nn::Init::constant(0));
    fc2_bias_ =
        &expert_param(here, "fc2.bias", {.name = {}, .shape = {e, h}}, -1, nn::Init::constant(0));
  }
  if (o.shared) shared_.emplace(scope / "shared", *o.shared, tp_);
  if (o.shared_gate)
    shared_gate_ =
        &scope.param("shared_gate.weight",
                     {.name = {}, .shape = {1, h}, .placements = parallel::token_wise(tp_)},
                     nn::Init::normal(o.expert.init_std));
}

at::Tensor Moe::routed(const at::Tensor& x, const nn::ForwardContext& ctx) const {
  const at::Tensor own = parallel::own_rows(x, tp_);
  const parallel::Routed choice = parallel::route(
      parallel::router_logits(own, *router_, router_bias_, ctx), {}, options_.router);
  const parallel::Dispatch dispatch(choice.experts, options_.router.experts, experts_);
  const at::Tensor rows = dispatch.send(own), probs = dispatch.send_values(choice.probs);
  const at::Tensor up = nn::grouped_linear(rows, dispatch.ranges(), *fc1_, fc1_bias_, {}, ctx);
  const at::Tensor active =
      nn::activation(up, options_.expert.activation, options_.expert.gated, probs);
  // The bias of the output belongs to one rank of etp; the sum of their results must have it once.
  const bool with_bias = experts_.group.rank() % experts_.etp == 0;
  const at::Tensor out = nn::grouped_linear(active, dispatch.ranges(), *fc2_,
                                            with_bias ? fc2_bias_ : nullptr, probs, ctx);
  return parallel::join_rows(dispatch.take_back(out), x.size(0), tp_);
}

at::Tensor Moe::forward(const at::Tensor& x, const nn::ForwardContext& ctx) const {
  at::Tensor y = routed(x, ctx);
  if (!shared_) return y;
  at::Tensor shared = shared_->forward(x, ctx);
  if (shared_gate_ != nullptr)
    shared = nn::sigmoid_gate(shared, nn::linear(x, *shared_gate_, nullptr, ctx));
  return y + shared;
}

nn::Cost Moe::cost(const MoeOptions& o, const nn::LayerShape& shape) {
  const int64_t t = shape.tokens, k = o.router.top_k, rows = t * k, e = o.router.experts;
  const int64_t f = o.expert.ffn, up = o.expert.gated ? 2 * f : f, h = o.expert.hidden;
  nn::Cost cost;
  cost.forward_gemm_flops =
      2.0 * static_cast<double>(rows) * static_cast<double>(h) * static_cast<double>(up + f);
  // x, the rows sent, and what the experts keep of them.
  cost.saved_bytes = shape.element_bytes * (t * h + rows * (h + up + f));
  cost.saved_bytes += shape.acc_bytes * rows; // weights
  // Of the router: logits, choices, and scores where they are of all experts. Of the dispatch: the
  // rows of tokens and the tokens of rows.
  const bool of_selected =
      o.router.score == parallel::RouterScore::kSoftmax && !o.router.score_first;
  cost.saved_bytes += shape.acc_bytes * t * (of_selected ? e : 2 * e);
  if (!of_selected && o.router.normalize) cost.saved_bytes += shape.acc_bytes * t;
  cost.saved_bytes += static_cast<int64_t>(sizeof(int64_t)) * 3 * rows;
  if (!o.shared) return cost;
  cost += Mlp::cost(*o.shared, shape);
  cost.saved_bytes -= shape.element_bytes * t * h; // x again
  if (o.shared_gate) cost.saved_bytes += shape.element_bytes * t * (h + 1);
  return cost;
}

} // namespace pentatron::layers
