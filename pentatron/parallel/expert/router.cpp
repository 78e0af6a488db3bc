#include "pentatron/parallel/expert/router.h"

#include <ATen/ATen.h>
#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>

#include <limits>
#include <vector>

#include "pentatron/base/philox.h"
#include "pentatron/nn/host_copies.h"
#include "pentatron/nn/ops/matmul.h"
#include "pentatron/nn/param.h"
#include "pentatron/nn/record.h"
#include "pentatron/parallel/expert/scores.h"

namespace pentatron::parallel {

namespace {

/// The k greatest of n numbers, greatest first, of equal ones the first; NaN counts as least.
template <class T> void select(const T* values, int64_t n, int64_t k, int64_t* out) {
  std::vector<bool> taken(static_cast<size_t>(n), false);
  for (int64_t j = 0; j < k; ++j) {
    int64_t best = -1;
    for (int64_t i = 0; i < n; ++i) {
      if (taken[static_cast<size_t>(i)]) continue;
      if (best < 0 || values[i] > values[best] ||
          (values[best] != values[best] && values[i] == values[i]))
        best = i;
    }
    taken[static_cast<size_t>(best)] = true;
    out[j] = best;
  }
}

/// Of each row. -> [rows, k] int64
at::Tensor top(const at::Tensor& values_in, int64_t k) {
  const at::Tensor values = values_in.contiguous();
  const int64_t rows = values.size(0), n = values.size(1);
  if (!values.is_cpu())
    return std::get<1>(at::sort(values, /*stable=*/true, /*dim=*/1, /*descending=*/true))
        .narrow(1, 0, k)
        .contiguous();
  const at::Tensor chosen = at::empty({rows, k}, values.options().dtype(at::kLong));
  int64_t* const out = chosen.mutable_data_ptr<int64_t>();
  AT_DISPATCH_FLOATING_TYPES(values.scalar_type(), "route", [&] {
    const scalar_t* const from = values.const_data_ptr<scalar_t>();
    at::parallel_for(0, rows, std::max<int64_t>(1, 16384 / (n * k)),
                     [&](int64_t begin, int64_t end) {
                       for (int64_t t = begin; t < end; ++t)
                         select(from + t * n, n, k, out + t * k);
                     });
  });
  return chosen;
}

at::Tensor choose(const at::Tensor& selection, const RouterOptions& o) {
  if (o.groups <= 1) return top(selection, o.top_k);
  const int64_t tokens = selection.size(0), size = o.experts / o.groups;
  const at::Tensor grouped = selection.reshape({tokens * o.groups, size});
  const at::Tensor group_scores =
      grouped.gather(1, top(grouped, o.group_score_top_k)).sum(1).view({tokens, o.groups});
  const at::Tensor open = at::zeros({tokens, o.groups}, selection.options().dtype(at::kBool))
                              .scatter_(1, top(group_scores, o.group_top_k), true);
  return top(selection.masked_fill(open.repeat_interleave(size, 1).logical_not(),
                                   -std::numeric_limits<double>::infinity()),
             o.top_k);
}

} // namespace

at::Tensor router_logits(const at::Tensor& x, nn::Param& weight, nn::Param* bias,
                         const nn::ForwardContext& ctx) {
  ctx.use(&weight);
  ctx.use(bias);
  const at::ScalarType acc = nn::acc_dtype(x.scalar_type());
  at::Tensor y;
  {
    const nn::NoAutograd guard;
    y = nn::matmul_nt(x.detach().to(acc), weight.value().to(acc),
                      bias != nullptr ? bias->value().to(acc) : at::Tensor());
  }
  nn::record("router_logits", {x}, {y}, {x},
             [&weight, bias, acc, wants_dx = x.requires_grad()](auto&& grads, nn::Saved& saved) {
               const nn::NoAutograd guard;
               const at::Tensor dy = grads[0].contiguous();
               const at::Tensor x = saved.take(0);
               at::Tensor dx;
               if (wants_dx) dx = nn::matmul_nn(dy, weight.value().to(acc)).to(x.scalar_type());
               if (weight.trainable) {
                 nn::add_matmul_tn(weight, dy, x.to(acc));
                 weight.accumulated();
               }
               if (bias != nullptr && bias->trainable) {
                 nn::add_column_sums(bias->main_grad(), dy);
                 bias->accumulated();
               }
               return std::vector<at::Tensor>{dx};
             });
  return y;
}

at::Tensor sinkhorn(const at::Tensor& logits) {
  constexpr double kTolerance = 1e-4, kEps = 1e-8;
  constexpr int kMostRounds = 1000;
  const nn::NoAutograd guard;
  const at::Tensor x = logits.detach();
  // A common factor of a row changes nothing, and large logits would not be finite.
  const at::Tensor cost = at::exp(x - x.amax(1, /*keepdim=*/true));
  if (cost.size(0) == 0) return cost;
  at::Tensor rows = at::ones({cost.size(0)}, cost.options()),
             columns = at::ones({cost.size(1)}, cost.options());
  for (int round = 0; round < kMostRounds; ++round) {
    rows = 1 / (static_cast<double>(cost.size(0)) * (at::mv(cost, columns) + kEps));
    const at::Tensor next =
        1 / (static_cast<double>(cost.size(1)) * (at::mv(cost.t(), rows) + kEps));
    const auto change = nn::host_value<double>((next - columns).abs().mean());
    columns = next;
    if (!(change > kTolerance)) break; // also of NaN
  }
  return rows.unsqueeze(1) * cost * columns.unsqueeze(0);
}

at::Tensor balanced_experts(const at::Tensor& row_ids, const RouterOptions& o) {
  const at::Tensor first = (row_ids * o.top_k).unsqueeze(1);
  return (first + at::arange(o.top_k, row_ids.options())).remainder(o.experts).contiguous();
}

at::Tensor jitter(const at::Tensor& x, const at::Tensor& row_ids, double eps, uint32_t site,
                  uint64_t seed) {
  at::Tensor factors;
  {
    const nn::NoAutograd guard;
    const at::Tensor ids = nn::host_values(row_ids);
    const at::Tensor made = at::empty(x.sizes(), at::kFloat);
    const int64_t* const id = ids.const_data_ptr<int64_t>();
    float* const out = made.mutable_data_ptr<float>();
    const int64_t features = x.size(1);
    const Stream stream(seed, "router jitter");
    at::parallel_for(
        0, x.size(0), std::max<int64_t>(1, 16384 / features), [&](int64_t begin, int64_t end) {
          for (int64_t t = begin; t < end; ++t)
            for (int64_t i = 0; i < features; ++i) {
              const double u = stream.uniform(static_cast<uint64_t>(id[t]),
                                              (uint64_t{site} << 32) | static_cast<uint64_t>(i));
              out[t * features + i] = static_cast<float>(1 - eps + 2 * eps * u);
            }
        });
    factors = nn::to_device(made, x.device()).to(x.scalar_type());
  }
  at::Tensor y;
  {
    const nn::NoAutograd guard;
    y = x.detach() * factors;
  }
  nn::record("jitter", {x}, {y}, {factors}, [](auto&& grads, nn::Saved& saved) {
    const nn::NoAutograd guard;
    return std::vector<at::Tensor>{grads[0] * saved[0]};
  });
  return y;
}

Routed route(const at::Tensor& logits, const SelectionInputs& selection, const RouterOptions& o) {
  const bool of_selected = o.score == RouterScore::kSoftmax && !o.score_first;
  Routed routed;
  at::Tensor scores, sums;
  {
    const nn::NoAutograd guard;
    const at::Tensor x = logits.detach();
    if (!of_selected) scores = router_scores(x, o.score);
    if (selection.forced.defined()) {
      routed.experts = selection.forced;
    } else {
      at::Tensor compared = selection.sinkhorn ? sinkhorn(x) : of_selected ? x : scores;
      if (selection.bias.defined()) compared = compared + selection.bias;
      routed.experts = choose(compared, o);
    }
    at::Tensor probs = (of_selected ? x : scores).gather(1, routed.experts);
    if (of_selected) {
      probs = at::softmax(probs, 1);
    } else if (o.normalize) {
      sums = probs.sum(1, /*keepdim=*/true) + kTinyScore;
      probs = probs / sums;
    }
    routed.probs = probs * o.scaling;
  }
  nn::record("route", {logits}, {routed.probs}, {logits, routed.experts, scores, sums},
             [o, of_selected](auto&& grads, nn::Saved& saved) {
               const nn::NoAutograd guard;
               const at::Tensor x = saved[0], experts = saved[1], scores = saved[2],
                                sums = saved[3];
               at::Tensor grad = grads[0] * o.scaling; // of the selected scores
               if (of_selected) {
                 const at::Tensor p = at::softmax(x.gather(1, experts), 1);
                 grad = p * (grad - (grad * p).sum(1, /*keepdim=*/true));
                 return std::vector<at::Tensor>{at::zeros_like(x).scatter_(1, experts, grad)};
               }
               if (o.normalize) {
                 const at::Tensor p = scores.gather(1, experts) / sums;
                 grad = (grad - (grad * p).sum(1, /*keepdim=*/true)) / sums;
               }
               return std::vector<at::Tensor>{router_scores_backward(
                   at::zeros_like(x).scatter_(1, experts, grad), scores, x, o.score)};
             });
  return routed;
}

} // namespace pentatron::parallel
