#include "pentatron/layers/moe.h"

#include <ATen/ATen.h>

#include <utility>

#include "pentatron/base/planted_bug.h"
#include "pentatron/nn/host_copies.h"
#include "pentatron/nn/recompute.h"

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
    : name_(scope.prefix()), options_(o), tp_(std::move(tp)), experts_(experts) {
  const int64_t e = o.router.experts, h = o.expert.hidden, f = o.expert.ffn;
  const int64_t width = o.latent > 0 ? o.latent : h; // of what experts read and give
  // Each rank routes tokens of its own, with and without sequence parallel.
  const nn::Placement of_tokens = planted("router_gradient_of_one_tensor_rank")
                                      ? nn::Placement::replicate()
                                      : nn::Placement::partial();
  const auto of_own_tokens = [&](const std::string& name, std::vector<int64_t> shape, double std) {
    return &scope.param(name,
                        {.name = {}, .shape = std::move(shape), .placements = {{"tp", of_tokens}}},
                        std > 0 ? nn::Init::normal(std) : nn::Init::constant(0));
  };
  router_ = of_own_tokens("router.weight", {e, h}, o.expert.init_std);
  router_adapters_ = parallel::TokenAdapters(scope / "router", *router_);
  if (o.router_bias) router_bias_ = of_own_tokens("router.bias", {e}, 0);
  if (o.expert_bias)
    expert_bias_ =
        &scope.buffer("router.expert_bias", {.name = {}, .shape = {e}}, nn::Init::constant(0));

  std::vector<nn::FusedPart> parts = {{"up", f, 1}};
  if (o.expert.gated) parts.insert(parts.begin(), {"gate", f, 1});
  const int64_t up = o.expert.gated ? 2 * f : f;
  const nn::Scope here = scope.at(expert_coordinates(experts_)) / "experts";
  fc1_ = &expert_param(here, "fc1.weight",
                       {.name = {}, .shape = {e, up, width}, .parts = parts, .parts_dim = 1}, 1,
                       nn::Init::normal(o.expert.init_std));
  fc2_ = &expert_param(here, "fc2.weight", {.name = {}, .shape = {e, width, f}}, 2,
                       nn::Init::normal(o.expert.proj_init_std));
  if (o.expert.bias) {
    fc1_bias_ = &expert_param(here, "fc1.bias",
                              {.name = {}, .shape = {e, up}, .parts = parts, .parts_dim = 1}, 1,
                              nn::Init::constant(0));
    fc2_bias_ = &expert_param(here, "fc2.bias", {.name = {}, .shape = {e, width}}, -1,
                              nn::Init::constant(0));
  }
  if (o.latent > 0) {
    down_ = of_own_tokens("fc1_latent_proj.weight", {width, h}, o.expert.init_std);
    up_ = of_own_tokens("fc2_latent_proj.weight", {h, width}, o.expert.proj_init_std);
    if (o.expert.bias) {
      down_bias_ = of_own_tokens("fc1_latent_proj.bias", {width}, 0);
      up_bias_ = of_own_tokens("fc2_latent_proj.bias", {h}, 0);
    }
  }
  fc1_->linear = fc2_->linear = true;
  for (nn::Param* const weight : {fc1_, fc2_, down_, up_})
    if (weight != nullptr) weight->multiplies = nn::ProductRows::kTokens;
  fc1_->share_multiplied = fc2_->share_multiplied =
      static_cast<double>(o.router.top_k) / static_cast<double>(e);
  fc1_adapter_ = parallel::GroupedAdapter::make(here, *fc1_);
  fc2_adapter_ = parallel::GroupedAdapter::make(here, *fc2_);
  fc1_variants_ = parallel::GroupedAdapter::make_variants(here, *fc1_);
  fc2_variants_ = parallel::GroupedAdapter::make_variants(here, *fc2_);
  if (o.shared) shared_.emplace(scope / "shared", *o.shared, tp_);
  if (o.shared_gate)
    shared_gate_ =
        &scope.param("shared_gate.weight",
                     {.name = {}, .shape = {1, h}, .placements = parallel::token_wise(tp_)},
                     nn::Init::normal(o.expert.init_std));
  if (shared_gate_ != nullptr)
    shared_gate_adapters_ = parallel::TokenAdapters(scope / "shared_gate", *shared_gate_);
}

parallel::Routed Moe::choose(const at::Tensor& own, const nn::ForwardContext& ctx) const {
  const MoeOptions& o = options_;
  const auto of_own = [&](const at::Tensor& per_token) {
    return parallel::own_part(ctx.layout->outer(per_token), tp_);
  };
  at::Tensor read = own;
  if (ctx.training && o.jitter > 0)
    read = parallel::jitter(own, of_own(ctx.layout->row_ids), o.jitter, o.site, ctx.seed);
  const at::Tensor logits =
      router_adapters_.add_to(parallel::router_logits(read, *router_, router_bias_, ctx), read, ctx,
                              ctx.variant_rows == nullptr || own.size(0) == 0
                                  ? 0
                                  : *parallel::own_part(at::arange(ctx.layout->outer_tokens()), tp_)
                                         .const_data_ptr<int64_t>());
  parallel::SelectionInputs selection{.sinkhorn = ctx.training && o.sinkhorn};
  if (expert_bias_ != nullptr) selection.bias = expert_bias_->value();
  if (ctx.training && o.forced_balance)
    selection.forced = parallel::balanced_experts(of_own(ctx.layout->row_ids), o.router);
  parallel::Routed choice = parallel::route(logits, selection, o.router);
  if (!ctx.training) return choice;

  at::Tensor real = ctx.layout->real_tokens();
  if (real.defined()) real = of_own(real);
  choice.probs =
      parallel::with_auxiliary_losses(choice.probs,
                                      {.logits = logits,
                                       .experts = choice.experts,
                                       .samples = of_own(ctx.layout->sample_numbers()),
                                       .real = real},
                                      o.auxiliary, o.router, name_, experts_.samples, ctx);
  const at::Tensor counts = parallel::choice_counts(choice.experts, real, o.router.experts);
  at::Tensor dropped = at::zeros({1}, counts.options());
  if (o.capacity.factor > 0) {
    const at::Tensor lost =
        parallel::kept_choices(choice.experts, choice.probs, real, o.router.experts, o.capacity)
            .logical_not();
    choice.experts = choice.experts.masked_fill(lost, -1);
    dropped = (real.defined() ? lost & real.unsqueeze(1) : lost).sum().view({1});
  }
  ctx.add_expert_counts(name_, at::cat({counts, dropped}));
  return choice;
}

at::Tensor Moe::variants_of(const parallel::Dispatch& dispatch,
                            const nn::ForwardContext& ctx) const {
  // All ranks read the same pass, so that they agree on whether there is an exchange.
  const bool any = ctx.variant_rows != nullptr && !ctx.variant_rows->empty();
  if (!any || (fc1_variants_.empty() && fc2_variants_.empty())) return {};
  const at::Tensor own = at::zeros({ctx.layout->outer_tokens(), 1}, at::kFloat);
  for (const nn::VariantRows& rows : *ctx.variant_rows)
    own.narrow(0, rows.begin, rows.size).fill_(static_cast<double>(rows.variant));
  const at::Tensor arrived = dispatch.carry(
      nn::to_device(parallel::own_part(own, tp_).contiguous(), router_->value().device()));
  return nn::host_values(arrived.squeeze(1)).to(at::kLong);
}

at::Tensor Moe::of_experts(const parallel::Dispatch::Arrived& arrived,
                           const parallel::Dispatch& dispatch,
                           const nn::ForwardContext& ctx) const {
  const at::Tensor& probs = arrived.values;
  const std::vector<nn::RowRange>& ranges = dispatch.ranges();
  const at::Tensor variants = variants_of(dispatch, ctx);
  at::Tensor up = nn::grouped_linear(arrived.rows, ranges, *fc1_, fc1_bias_, {}, ctx);
  if (fc1_adapter_ != nullptr) up = fc1_adapter_->forward(arrived.rows, ranges, up, ctx);
  if (variants.defined())
    parallel::GroupedAdapter::add_variants(fc1_variants_, up, arrived.rows, ranges, variants, ctx);
  const auto activate = [this](const std::vector<at::Tensor>& in, const nn::ForwardContext&) {
    const bool twice = experts_.group.size() > 1 && planted("expert_weight_applied_twice");
    return std::vector<at::Tensor>{
        nn::activation(in[0], options_.expert.activation, options_.expert.gated,
                       twice ? in[1] * in[1] : in[1], options_.expert.gate)};
  };
  const at::Tensor active = nn::run_part(nn::Part::kMoeActivation, activate, {up, probs}, ctx)[0];
  // The bias of the output belongs to one rank of etp; the sum of their results must have it once.
  const bool with_bias =
      experts_.group.rank() % experts_.etp == 0 || planted("expert_bias_on_every_rank");
  const at::Tensor out =
      nn::grouped_linear(active, ranges, *fc2_, with_bias ? fc2_bias_ : nullptr, probs, ctx);
  if (variants.defined())
    parallel::GroupedAdapter::add_variants(fc2_variants_, out, active, ranges, variants, ctx);
  return fc2_adapter_ == nullptr ? out : fc2_adapter_->forward(active, ranges, out, ctx);
}

at::Tensor Moe::of_shared(const at::Tensor& x, const nn::ForwardContext& ctx) const {
  const auto run = [this](const std::vector<at::Tensor>& in, const nn::ForwardContext& c) {
    const at::Tensor y = shared_->forward(in[0], c);
    if (shared_gate_ == nullptr) return std::vector<at::Tensor>{y};
    return std::vector<at::Tensor>{nn::sigmoid_gate(
        y, shared_gate_adapters_.add_to(nn::linear(in[0], *shared_gate_, nullptr, c), in[0], c))};
  };
  return nn::run_part(nn::Part::kSharedExperts, run, {x}, ctx)[0];
}

at::Tensor Moe::forward(const at::Tensor& x, const nn::ForwardContext& ctx) const {
  const auto run = [this](const std::vector<at::Tensor>& in, const nn::ForwardContext& c) {
    return std::vector<at::Tensor>{of_all(in[0], c)};
  };
  return nn::run_part(nn::Part::kMoe, run, {x}, ctx)[0];
}

at::Tensor Moe::of_all(const at::Tensor& x, const nn::ForwardContext& ctx) const {
  const at::Tensor own = parallel::own_rows(x, tp_);
  const parallel::Routed choice = choose(own, ctx);
  const int64_t least =
      ctx.training && options_.capacity.pad
          ? parallel::expert_capacity(own.size(0), options_.router.top_k, options_.router.experts,
                                      options_.capacity.factor)
          : 0;
  const parallel::Dispatch dispatch(choice.experts, options_.router.experts, experts_, least);
  const auto sent = dispatch.send(down_ != nullptr ? nn::linear(own, *down_, down_bias_, ctx) : own,
                                  choice.probs);
  // Backward goes the same way in reverse: gradients of the rows set off before those of the shared
  // experts are computed. Sums are made in one order with and without it.
  at::Tensor shared;
  if (shared_ && experts_.overlap_shared) shared = of_shared(x, ctx);
  const at::Tensor rows = of_experts(dispatch.arrive(sent), dispatch, ctx);
  at::Tensor y = dispatch.take_back(rows);
  if (up_ != nullptr) y = nn::linear(y, *up_, up_bias_, ctx);
  y = parallel::join_rows(y, x.size(0), tp_);
  if (!shared_) return y;
  return y + (shared.defined() ? shared : of_shared(x, ctx));
}

/// Rows that this rank's tokens send to experts. With about equal loads a capacity limit rarely
/// drops any, so dropped ones count. With padding there are as many as experts can take.
int64_t Moe::sent_rows(const MoeOptions& o, int64_t tokens) {
  if (o.capacity.factor == 0) return tokens * o.router.top_k;
  const int64_t all =
      o.router.experts *
      parallel::expert_capacity(tokens, o.router.top_k, o.router.experts, o.capacity.factor);
  return o.capacity.pad ? all : std::min(all, tokens * o.router.top_k);
}

/// Weights of choices travel with the rows, in the accumulate type; counts or choices go ahead of
/// them. In backward gradients of the sums leave, and those of rows and weights come back.
nn::ExchangeCost Moe::exchange_cost(const MoeOptions& o, const nn::LayerShape& shape) {
  const auto own = static_cast<double>(shape.own_tokens()), k = static_cast<double>(o.router.top_k),
             element = static_cast<double>(shape.element_bytes),
             acc = static_cast<double>(shape.acc_bytes);
  const double row = element * static_cast<double>(o.latent > 0 ? o.latent : o.expert.hidden),
               ranks = shape.ep * shape.etp, others = ranks - 1;
  constexpr double kNumber = sizeof(int64_t);
  nn::ExchangeCost cost;
  if (ranks > 1 && shape.gathers_tokens) {
    // The sum of one number, the number of tokens, goes to all ranks as parts and as a whole.
    cost = {.forward_bytes =
                others * own * (2 * row + k * (acc + kNumber)) + 2 * kNumber * others / ranks,
            .backward_bytes = others * own * (2 * row + k * acc),
            .forward_count = 5,
            .backward_count = 3};
  } else if (ranks > 1) {
    const auto sent = static_cast<double>(sent_rows(o, shape.own_tokens()));
    const double rows = sent * shape.etp * others / ranks;
    cost = {.forward_bytes =
                rows * (2 * row + acc) + others * kNumber * static_cast<double>(o.router.experts),
            .backward_bytes = rows * (2 * row + acc),
            .forward_count = 4,
            .backward_count = 3};
  }
  if (shape.tp > 1 && !shape.sequence_parallel) {
    const double bytes = (shape.tp - 1) * own * element * static_cast<double>(o.expert.hidden);
    cost +=
        {.forward_bytes = bytes, .backward_bytes = bytes, .forward_count = 1, .backward_count = 1};
  }
  return cost;
}

nn::Cost Moe::cost(const MoeOptions& o, const nn::LayerShape& shape) {
  const int64_t own = shape.own_tokens(), k = o.router.top_k, rows = own * k, e = o.router.experts,
                sent = sent_rows(o, own);
  const int64_t h = o.expert.hidden, width = o.latent > 0 ? o.latent : h;
  // Of this rank's parts of experts, with equal loads.
  const int64_t arrived = sent * shape.etp, f = o.expert.ffn / shape.etp,
                up = o.expert.gated ? 2 * f : f;
  nn::Cost cost;
  cost.forward_gemm_flops =
      2.0 * static_cast<double>(rows * shape.etp) * static_cast<double>(width) *
          static_cast<double>(up + f) + // of choices: padding is no work of the model
      4.0 * static_cast<double>(own) * static_cast<double>(h) * static_cast<double>(o.latent);
  cost.expert_exchange = exchange_cost(o, shape);
  // x, of which own tokens are a part, the rows that arrive, what the experts keep of them, and the
  // sums that leave the latent.
  const int64_t x = shape.element_bytes * h * shape.outer_tokens();
  cost.saved_bytes = x + shape.element_bytes * (arrived * (width + up + f) + own * o.latent);
  cost.saved_bytes += shape.acc_bytes * arrived; // weights
  // Of the router: logits, choices, and scores where they are of all experts. Of the dispatch: the
  // rows of tokens and the tokens of rows.
  const bool of_selected =
      o.router.score == parallel::RouterScore::kSoftmax && !o.router.score_first;
  cost.saved_bytes += shape.acc_bytes * own * (of_selected ? e : 2 * e);
  if (!of_selected && o.router.normalize) cost.saved_bytes += shape.acc_bytes * own;
  // Gradients of the experts' results, which have arrived, and of the activation's.
  cost.mlp_working_bytes = shape.element_bytes * arrived * (width + f);
  const int64_t places = (shape.gathers_tokens ? shape.ep : 1) * rows * shape.etp;
  cost.saved_bytes += static_cast<int64_t>(sizeof(int64_t)) * (rows + arrived + places);
  cost.bytes_of(nn::Part::kMoeActivation) = shape.element_bytes * arrived * f;
  if (o.shared) {
    cost += Mlp::cost(*o.shared, shape);
    cost.saved_bytes -= x; // again
    const int64_t gate = o.shared_gate ? shape.element_bytes * shape.outer_tokens() * (h + 1) : 0;
    cost.saved_bytes += gate;
    cost.bytes_of(nn::Part::kSharedExperts) =
        std::exchange(cost.bytes_of(nn::Part::kMlp), 0) + gate;
    cost.flops_of(nn::Part::kSharedExperts) = std::exchange(cost.flops_of(nn::Part::kMlp), 0);
  }
  cost.bytes_of(nn::Part::kMoe) = cost.saved_bytes - x;
  cost.flops_of(nn::Part::kMoe) = cost.forward_gemm_flops;
  return cost;
}

} // namespace pentatron::layers
