#include "pentatron/layers/sample_head.h"

#include <ATen/ATen.h>

#include <utility>

#include "pentatron/base/planted_bug.h"
#include "pentatron/comm/collectives.h"
#include "pentatron/nn/host_copies.h"
#include "pentatron/nn/ops/ops.h"
#include "pentatron/nn/record.h"

namespace pentatron::layers {

namespace {

/// Of the tokens that this rank holds: the first of samples `begin` and on.
struct FirstRows {
  int64_t begin = 0;
  std::vector<int64_t> rows;

  int64_t count() const { return std::ssize(rows); }
  at::Tensor index(at::Device device) const {
    return nn::to_device(at::tensor(rows, at::kLong), device);
  }
};

FirstRows first_rows(const nn::SequenceLayout& layout) {
  const int64_t first = layout.outer_begin, end = first + layout.outer_tokens();
  FirstRows result;
  for (int64_t sample = 0; sample < layout.batch; ++sample) {
    const int64_t start = layout.sample_starts[static_cast<size_t>(sample)];
    if (start < first) ++result.begin;
    if (start >= first && start < end) result.rows.push_back(start - first);
  }
  return result;
}

/// Adds the sum of `losses` [n] to the term's and makes it the root of a graph, `gradient` (scaled)
/// being that of `x`.
at::Tensor loss_of(const at::Tensor& x, const at::Tensor& losses, const at::Tensor& gradient,
                   const std::string& term, const nn::ForwardContext& ctx) {
  at::Tensor loss;
  {
    const nn::NoAutograd guard;
    const at::Tensor sum = losses.sum(at::kDouble);
    ctx.add_loss(term, sum);
    loss = (sum * ctx.loss_scale(term)).to(losses.scalar_type());
  }
  nn::record("sample_loss", {x}, {loss}, {gradient},
             [](auto&&, nn::Saved& saved) { return std::vector<at::Tensor>{saved.take(0)}; });
  return loss;
}

} // namespace

at::Tensor first_tokens(const at::Tensor& x, const parallel::TensorParallel& tp,
                        const nn::ForwardContext& ctx) {
  FirstRows first = first_rows(*ctx.layout);
  at::Tensor y;
  {
    const nn::NoAutograd guard;
    y = at::zeros({ctx.layout->batch, x.size(1)}, x.options());
    y.narrow(0, first.begin, first.count())
        .copy_(x.detach().index_select(0, first.index(x.device())));
    if (tp.sequence && !planted("first_tokens_of_one_rank"))
      comm::all_reduce_(y, comm::ReduceOp::kSum, tp.group);
  }
  nn::record("first_tokens", {x}, {y}, {},
             [first = std::move(first), shape = x.sizes().vec()](auto&& grads, nn::Saved&) {
               const nn::NoAutograd guard;
               const at::Tensor dx = at::zeros(shape, grads[0].options());
               dx.index_copy_(0, first.index(dx.device()),
                              grads[0].narrow(0, first.begin, first.count()));
               return std::vector<at::Tensor>{dx};
             });
  return y;
}

Pooler::Pooler(const nn::Scope& scope, int64_t hidden, double init_std,
               const parallel::TensorParallel& tp)
    : dense_(scope,
             {.in = hidden,
              .out = hidden,
              .init_std = init_std,
              .of = parallel::WholeLinear::Of::kSamples},
             tp) {}

at::Tensor Pooler::forward(const at::Tensor& first, const nn::ForwardContext& ctx) const {
  return nn::tanh(dense_.forward(first, ctx));
}

SampleHead::SampleHead(const nn::Scope& scope, const SampleHeadOptions& options)
    : options_(options),
      weight_(&scope.param("weight",
                           {.name = {}, .shape = {options.outputs, options.hidden}, .table = true},
                           nn::Init::normal(options.init_std))),
      bias_(&scope.vector("bias", options.outputs, nn::Init::constant(0))) {}

at::Tensor SampleHead::logits(const at::Tensor& x, const nn::ForwardContext& ctx) const {
  const at::Tensor kept = nn::dropout(
      x, {.p = options_.dropout, .site = options_.dropout_site, .rows = nn::Rows::kSamples}, ctx);
  return nn::linear(kept, *weight_, bias_, ctx);
}

at::Tensor SampleHead::class_loss(const at::Tensor& logits, const at::Tensor& labels,
                                  const nn::ForwardContext& ctx) const {
  at::Tensor losses, gradient;
  {
    const nn::NoAutograd guard;
    const at::Tensor x = logits.detach().to(nn::acc_dtype(logits.scalar_type()));
    const at::Tensor counts = labels >= 0, index = labels.clamp_min(0).unsqueeze(1);
    const at::Tensor log_p = at::log_softmax(x, 1);
    losses = -log_p.gather(1, index).squeeze(1) * counts;
    gradient = log_p.exp().scatter_add(1, index, at::full_like(index, -1, x.options()));
    gradient.mul_(counts.unsqueeze(1)).mul_(ctx.loss_scale(options_.term));
    gradient = gradient.to(logits.scalar_type());
    if (ctx.wanted.scores) {
      const at::Tensor best = x.argmax(1);
      ctx.add_predictions(options_.term, best, labels, counts);
      ctx.add_hits(options_.term, (best == labels).sum());
    }
  }
  return loss_of(logits, losses, gradient, options_.term, ctx);
}

at::Tensor SampleHead::squared_loss(const at::Tensor& values, const at::Tensor& labels,
                                    const nn::ForwardContext& ctx) const {
  at::Tensor losses, gradient;
  {
    const nn::NoAutograd guard;
    const at::Tensor x = values.detach().view({-1}).to(nn::acc_dtype(values.scalar_type()));
    const at::Tensor counts = ~at::isnan(labels);
    const at::Tensor error = at::where(counts, x - labels, 0.0).to(x.scalar_type());
    losses = error.square();
    gradient = (2 * ctx.loss_scale(options_.term) * error).to(values.scalar_type()).view_as(values);
    if (ctx.wanted.scores) ctx.add_predictions(options_.term, x, labels, counts);
  }
  return loss_of(values, losses, gradient, options_.term, ctx);
}

} // namespace pentatron::layers
