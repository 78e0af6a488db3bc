#include "pentatron/layers/core_attention.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>

#include "pentatron/base/error.h"
#include "pentatron/layers/core_attention_detail.h"
#include "pentatron/layers/varlen_attention.h"
#include "pentatron/nn/record.h"

namespace pentatron::layers {

namespace {

struct Entry {
  const char* name;
  bool (*accepts)(const detail::AttentionInputs& in);
  detail::AttentionResult (*forward)(const detail::AttentionInputs&);
  detail::AttentionGradients (*backward)(const detail::AttentionInputs&,
                                         const detail::AttentionResult&,
                                         const detail::OutputGradients&);
  bool lse_gradient;
  bool (*knows_logits)(const detail::AttentionInputs&) = nullptr; ///< in its forward
};

template <const detail::VarlenKernel& (*kernel)()> constexpr Entry varlen_entry(const char* name) {
  return {name,
          [](const detail::AttentionInputs& in) {
            return in.q.is_cuda() && detail::varlen_accepts(in, kernel());
          },
          [](const detail::AttentionInputs& in) { return detail::varlen_forward(in, kernel()); },
          [](const detail::AttentionInputs& in, const detail::AttentionResult& saved,
             const detail::OutputGradients& d) {
            return detail::varlen_backward(in, saved, d, kernel());
          },
          false};
}

constexpr Entry kEntries[] = {
    varlen_entry<detail::cudnn_on_gpu>("gpu_cudnn"),
    varlen_entry<detail::flash_on_gpu>("gpu_flash"),
    varlen_entry<detail::efficient_on_gpu>("gpu_efficient"),
    {"kernel", detail::kernel_accepts, detail::kernel_forward, detail::kernel_backward, true,
     detail::kernel_knows_logits},
    {"flash", detail::flash_accepts, detail::flash_forward, detail::flash_backward, false},
    {"blocked", [](const detail::AttentionInputs&) { return true; }, detail::blocked_forward,
     detail::blocked_backward, true},
};

const Entry& choose(const detail::AttentionInputs& in) {
  const Entry* entry = kEntries;
  while (!entry->accepts(in)) ++entry;
  return *entry;
}

detail::AttentionResult run_forward(const Entry& entry, const detail::AttentionInputs& in) {
  if (in.max_logits.defined() && (entry.knows_logits == nullptr || !entry.knows_logits(in)))
    detail::raise_max_logits(in);
  return entry.forward(in);
}

/// Throws if ranges overlap or do not lie in [0, size).
void check_disjoint(std::vector<nn::TokenRange> ranges, int64_t size, const char* what) {
  const auto before = [](const nn::TokenRange& a, const nn::TokenRange& b) {
    return a.begin < b.begin;
  };
  if (!std::ranges::is_sorted(ranges, before)) std::ranges::sort(ranges, before);
  int64_t free = 0;
  for (const nn::TokenRange& range : ranges) {
    if (range.begin < free || range.end < range.begin || range.end > size) {
      raise<ShapeError>("attention: {} [{}, {}) of a pair are not free ones of {}", what,
                        range.begin, range.end, size);
    }
    free = range.end;
  }
}

/// The pairs with queries and keys, checked.
std::vector<AttentionPair> checked(std::span<const AttentionPair> pairs,
                                   const AttentionOperands& x) {
  std::vector<AttentionPair> result;
  std::vector<nn::TokenRange> queries, keys;
  const int64_t span = x.bias.defined() ? (x.bias.size(1) + 1) / 2 : 0;
  for (const AttentionPair& p : pairs) {
    queries.push_back({p.query_begin, p.query_begin + p.query_size});
    keys.push_back({p.key_begin, p.key_begin + p.key_size});
    if (p.query_size == 0 || p.key_size == 0) continue;
    result.push_back(p);
    const int64_t distance = std::max(p.query_size - 1 - p.offset, p.offset + p.key_size - 1);
    if (x.bias.defined() && distance >= span) {
      raise<ShapeError>("attention: a bias of span {} has no column for the distance {}", span,
                        distance);
    }
  }
  check_disjoint(std::move(queries), x.q.size(0), "queries");
  check_disjoint(std::move(keys), x.k.size(0), "keys");
  return result;
}

detail::AttentionInputs inputs_of(const AttentionOperands& x, std::span<const AttentionPair> pairs,
                                  const CoreAttentionOptions& options,
                                  const nn::ForwardContext& ctx) {
  detail::AttentionInputs in{.q = x.q.detach(),
                             .k = x.k.detach(),
                             .v = x.v.detach(),
                             .bias = x.bias.defined() ? x.bias.detach().contiguous() : x.bias,
                             .pairs = checked(pairs, x),
                             .sequence = ctx.layout->sequence,
                             .options = options,
                             .row_ids = {},
                             .seed = ctx.seed};
  in.training = ctx.training;
  if (ctx.training && options.dropout > 0) in.row_ids = ctx.layout->row_ids;
  return in;
}

detail::AttentionGradients differentiate(const Entry& entry, const detail::AttentionInputs& in,
                                         const detail::AttentionResult& result,
                                         const std::vector<at::Tensor>& grads) {
  detail::OutputGradients d;
  d.out = grads[0].defined() ? grads[0].contiguous().view(result.out.sizes())
                             : at::zeros_like(result.out);
  if (grads[1].defined()) d.lse = grads[1].t().contiguous();
  return (d.lse.defined() && !entry.lse_gradient ? detail::blocked_backward
                                                 : entry.backward)(in, result, d);
}

} // namespace

namespace detail {

namespace {

bool all_in_pairs(const AttentionInputs& in, int64_t AttentionPair::*size, int64_t tokens) {
  for (const AttentionPair& pair : in.pairs) tokens -= pair.*size;
  return tokens == 0;
}

at::Tensor rows_like(const at::Tensor& x, bool all_written) {
  return all_written ? at::empty(x.sizes(), x.options()) : at::zeros(x.sizes(), x.options());
}

} // namespace

AttentionResult make_result(const AttentionInputs& in) {
  const int64_t tokens = in.q.size(0), n = in.q.size(1), e = in.v.size(2);
  const auto acc = in.q.options().dtype(nn::acc_dtype(in.q.scalar_type()));
  if (all_in_pairs(in, &AttentionPair::query_size, tokens))
    return {at::empty({tokens, n, e}, in.q.options()), at::empty({n, tokens}, acc)};
  return {at::zeros({tokens, n, e}, in.q.options()),
          at::full({n, tokens}, -std::numeric_limits<double>::infinity(), acc)};
}

AttentionGradients make_gradients(const AttentionInputs& in) {
  const bool queries = all_in_pairs(in, &AttentionPair::query_size, in.q.size(0)),
             keys = all_in_pairs(in, &AttentionPair::key_size, in.k.size(0));
  AttentionGradients grads{
      rows_like(in.q, queries), rows_like(in.k, keys), rows_like(in.v, keys), {}, {}};
  if (in.options.softmax != SoftmaxKind::kVanilla) {
    grads.dsinks =
        at::zeros({in.q.size(1)}, in.q.options().dtype(nn::acc_dtype(in.q.scalar_type())));
  }
  if (in.bias.defined()) grads.dbias = at::zeros_like(in.bias);
  return grads;
}

AttentionResult attention_forward(const AttentionInputs& in) {
  return run_forward(choose(in), in);
}

AttentionGradients attention_backward(const AttentionInputs& in, const AttentionResult& saved,
                                      const OutputGradients& d) {
  return choose(in).backward(in, saved, d);
}

} // namespace detail

const char* core_attention_entry(const AttentionOperands& x, std::span<const AttentionPair> pairs,
                                 const CoreAttentionOptions& options,
                                 const nn::ForwardContext& ctx) {
  return choose(inputs_of(x, pairs, options, ctx)).name;
}

AttentionOutputs core_attention(const AttentionOperands& x, std::span<const AttentionPair> pairs,
                                const CoreAttentionOptions& options,
                                const nn::ForwardContext& ctx) {
  detail::AttentionInputs in = inputs_of(x, pairs, options, ctx);
  const Entry& entry = choose(in);
  ctx.use(options.sinks);
  detail::AttentionResult result;
  AttentionOutputs outputs;
  {
    const nn::NoAutograd guard;
    in.max_logits = ctx.max_logits(options.name, in.q.size(1),
                                   in.q.options().dtype(nn::acc_dtype(in.q.scalar_type())));
    if (in.max_logits.defined() && !ctx.layout->real.empty())
      in.real_pairs = ctx.layout->with_real_queries(in.pairs);
    result = run_forward(entry, in);
    outputs = {result.out.view({result.out.size(0), -1}), result.lse.t()};
  }
  std::vector<at::Tensor> saved = {in.q, in.k, in.v, in.bias, in.row_ids, result.out, result.lse};
  in.q = in.k = in.v = in.bias = in.row_ids = in.max_logits = at::Tensor();
  nn::record(
      "core_attention", {x.q, x.k, x.v, x.bias}, {outputs.out, outputs.lse}, std::move(saved),
      [in = std::move(in), &entry](auto&& grads, nn::Saved& kept) {
        const nn::NoAutograd guard;
        detail::AttentionInputs all = in;
        all.q = kept[0];
        all.k = kept[1];
        all.v = kept[2];
        all.bias = kept[3];
        all.row_ids = kept[4];
        const detail::AttentionGradients g = differentiate(entry, all, {kept[5], kept[6]}, grads);
        if (all.options.sinks != nullptr && all.options.sinks->trainable)
          all.options.sinks->accumulate(g.dsinks);
        return std::vector<at::Tensor>{g.dq, g.dk, g.dv, g.dbias};
      });
  return outputs;
}

} // namespace pentatron::layers
