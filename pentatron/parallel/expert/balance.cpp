#include "pentatron/parallel/expert/balance.h"

#include <ATen/ATen.h>

#include "pentatron/base/error.h"
#include "pentatron/base/planted_bug.h"
#include "pentatron/comm/collectives.h"
#include "pentatron/nn/host_copies.h"
#include "pentatron/nn/record.h"
#include "pentatron/parallel/expert/order.h"

namespace pentatron::parallel {

namespace {

/// [T] with the number of each token's sum: its sample, or 0.
at::Tensor sums_of(const AuxiliaryInputs& x, Balance balance) {
  return balance == Balance::kSequence ? x.samples : at::zeros_like(x.samples);
}

/// The factor of a token's scores [T, E]: what its sum says of the load of experts. The number of
/// tokens of a sum is that of its choices / k.
at::Tensor loads_of_sums(const AuxiliaryInputs& x, Balance balance, const RouterOptions& o,
                         int64_t samples, const comm::Group& ranks) {
  const at::Tensor sums = sums_of(x, balance);
  const int64_t number = balance == Balance::kSequence ? samples : 1;
  at::Tensor choices = at::ones(x.experts.sizes(), x.experts.options());
  if (x.real.defined()) choices = choices * x.real.unsqueeze(1);
  at::Tensor counts = at::zeros({number, o.experts}, x.experts.options());
  counts.view({-1}).index_add_(0, (sums.unsqueeze(1) * o.experts + x.experts).view({-1}),
                               choices.view({-1}));
  if (!planted("balance_counts_of_one_tensor_rank"))
    counts = comm::all_reduce(counts, comm::ReduceOp::kSum, ranks);
  const at::Tensor c = counts.to(x.logits.scalar_type());
  const at::Tensor total = c.sum(1, /*keepdim=*/true).clamp_min(1);
  const double factor = static_cast<double>(o.experts * o.top_k);
  return (c * factor / (total * total)).index_select(0, sums);
}

/// Sums of rows that are of real tokens.
at::Tensor total_of(const at::Tensor& values, const at::Tensor& real) {
  return (real.defined() ? values.masked_fill(real.logical_not(), 0) : values).sum(at::kDouble);
}

} // namespace

std::string balance_term(Balance balance) {
  switch (balance) {
  case Balance::kGlobal:
    return "global load balancing loss";
  case Balance::kSequence:
    return "seq load balancing loss";
  case Balance::kMicrobatch:
    return "load balancing loss";
  }
  PT_DCHECK(false);
}

at::Tensor with_auxiliary_losses(const at::Tensor& probs, const AuxiliaryInputs& x,
                                 const AuxiliaryOptions& options, const RouterOptions& o,
                                 const std::string& layer, const comm::Group& ranks,
                                 const nn::ForwardContext& ctx) {
  at::Tensor gradient;
  {
    const nn::NoAutograd guard;
    const at::Tensor logits = x.logits.detach();
    const auto add = [&](const at::Tensor& more) {
      gradient = gradient.defined() ? gradient + more : more;
    };
    if (const auto scale = ctx.given_scale(kZLoss); scale && options.z_loss) {
      const at::Tensor lse = at::logsumexp(logits, 1, /*keepdim=*/true);
      ctx.add_loss(kZLoss, total_of(lse * lse, x.real.defined() ? x.real.unsqueeze(1) : x.real));
      const bool wrong =
          x.logits.size(0) < ctx.layout->tokens() && planted("auxiliary_gradient_not_scaled");
      add((logits - lse).exp() * lse *
          (2 * (wrong ? 1.0 / static_cast<double>(x.logits.size(0)) : *scale)));
    }
    for (const Balance balance : options.balance) {
      const std::string term = balance_term(balance);
      const auto scale = ctx.given_scale(term);
      if (!scale) continue;
      at::Tensor load;
      if (balance == Balance::kGlobal) {
        const auto found = ctx.expert_loads->find(layer);
        if (found != ctx.expert_loads->end()) // else this is the first step
          load = (found->second.to(logits.scalar_type()) * static_cast<double>(o.experts))
                     .unsqueeze(0);
      } else {
        load = loads_of_sums(x, balance, o, ctx.layout->batch, ranks);
      }
      if (load.defined()) {
        const at::Tensor scores = router_scores(logits, o.score),
                         sum = scores.sum(1, /*keepdim=*/true) + kTinyScore, p = scores / sum;
        const at::Tensor values = (p * load).sum(1, /*keepdim=*/true);
        ctx.add_loss(term, total_of(values, x.real.defined() ? x.real.unsqueeze(1) : x.real));
        add(router_scores_backward((load - values) / sum * *scale, scores, logits, o.score));
      }
    }
    if (gradient.defined() && x.real.defined())
      gradient = gradient.masked_fill(x.real.logical_not().unsqueeze(1), 0);
  }
  if (!gradient.defined()) return probs;
  const at::Tensor y = probs.detach();
  nn::record("auxiliary_losses", {probs, x.logits}, {y}, {gradient},
             [](auto&& grads, nn::Saved& saved) {
               return std::vector<at::Tensor>{grads[0], saved.take(0)};
             });
  return y;
}

at::Tensor choice_counts(const at::Tensor& experts, const at::Tensor& real, int64_t num_experts) {
  const nn::NoAutograd guard;
  const at::Tensor chosen =
      real.defined() ? experts.masked_fill(real.logical_not().unsqueeze(1), -1) : experts;
  return counts_of_keys(chosen.reshape({-1}), num_experts, 0);
}

void update_expert_bias(const at::Tensor& bias, const at::Tensor& counts, double rate) {
  const nn::NoAutograd guard;
  const at::Tensor below = (counts.sum() - counts * counts.size(0)).sign();
  bias.add_(nn::to_device(below, bias.device()).to(bias.scalar_type()), rate);
}

} // namespace pentatron::parallel
