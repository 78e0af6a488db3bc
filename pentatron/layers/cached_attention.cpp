#include "pentatron/layers/cached_attention.h"

#include <limits>
#include <utility>
#include <vector>

#include <ATen/ATen.h>

#include "pentatron/kernels/attention/cached_attention.h"
#include "pentatron/layers/core_attention_detail.h"
#include "pentatron/nn/ops/kernel_args.h"

namespace pentatron::layers {

namespace {

using nn::KvCache;

/// The keys and values of a sequence that new tokens look at.
struct Kept {
  KvCache::Document document;
  int64_t length = 0;
  const std::vector<at::Tensor>*k = nullptr, *v = nullptr; ///< pages
  int64_t value_size = 0;                                  ///< of the first features of v; 0: all
};

int64_t size_of_values(const at::Tensor& q, const std::vector<Kept>& kept) {
  return kept.empty() || kept.front().value_size == 0 ? q.size(2) : kept.front().value_size;
}

std::vector<const void*> addresses(const std::vector<at::Tensor>& pages) {
  std::vector<const void*> all;
  for (const at::Tensor& page : pages) all.push_back(page.const_data_ptr());
  return all;
}

at::Tensor run_kernel(const AttentionOperands& x, const std::vector<Kept>& kept, bool causal,
                      const CoreAttentionOptions& options) {
  const at::Tensor& q = x.q;
  // Tokens without a sequence are nobody's.
  const int64_t value_size = size_of_values(q, kept);
  const at::Tensor out = at::zeros({q.size(0), q.size(1), value_size}, q.options());
  if (kept.empty()) return out;
  std::vector<std::vector<const void*>> pages;
  for (const Kept& one : kept) {
    pages.push_back(addresses(*one.k));
    pages.push_back(addresses(*one.v));
  }
  std::vector<kernels::CachedSequence> sequences;
  for (size_t i = 0; i < kept.size(); ++i)
    sequences.push_back({.first = kept[i].document.first,
                         .count = kept[i].document.count,
                         .length = kept[i].length,
                         .k = pages[2 * i],
                         .v = pages[2 * i + 1]});
  const at::Tensor sinks = detail::sink_logits(q, options), &page = kept.front().k->front(),
                   bias = x.bias.defined() ? x.bias.contiguous() : at::Tensor();
  const kernels::CachedAttention args{.dtype = nn::kernel_dtype(q.scalar_type()),
                                      .heads = q.size(1),
                                      .kv_heads = page.size(1),
                                      .head_size = q.size(2),
                                      .value_size = value_size,
                                      .sequences = sequences,
                                      .q = {q.data_ptr(), q.stride(0), q.stride(1)},
                                      .out = {out.data_ptr(), out.stride(0), out.stride(1)},
                                      .fp8 = page.scalar_type() == at::kByte,
                                      .kv_token_stride = page.stride(0),
                                      .kv_head_stride = page.stride(1),
                                      .page = page.size(0),
                                      .scale = options.scale,
                                      .window = options.window,
                                      .causal = causal,
                                      .cap = options.cap,
                                      .sinks = nn::data_or_null(sinks),
                                      .bias = nn::data_or_null(bias),
                                      .span = bias.defined() ? (bias.size(1) + 1) / 2 : 0};
  kernels::cached_attention(args, nn::KernelContext(q, kernels::workspace_bytes(args)));
  return out;
}

/// LibTorch's operators, on any device.
at::Tensor run_operators(const AttentionOperands& x, const std::vector<Kept>& kept, bool causal,
                         const CoreAttentionOptions& options) {
  const at::Tensor &q = x.q, &bias = x.bias;
  const int64_t n = q.size(1), d = q.size(2), e = size_of_values(q, kept);
  const at::Tensor out = at::zeros({q.size(0), n, e}, q.options());
  const at::Tensor sinks = detail::sink_logits(q, options);
  const auto acc = q.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  for (const auto& [document, length, k_pages, v_pages, value_size] : kept) {
    if (document.count == 0) continue;
    const int64_t g = k_pages->front().size(1);
    const auto whole = [&, end = length](const std::vector<at::Tensor>& pages) { // [g, length, d]
      at::Tensor all = at::cat(pages).narrow(0, 0, end);
      if (all.scalar_type() == at::kByte) all = nn::from_fp8_rows(all, q.scalar_type());
      return all.transpose(0, 1);
    };
    const at::Tensor rows = q.narrow(0, document.first, document.count)
                                .unflatten(1, {g, n / g})
                                .permute({1, 2, 0, 3})
                                .reshape({g, n / g * document.count, d});
    at::Tensor s = at::bmm(rows, whole(*k_pages).transpose(1, 2))
                       .to(acc)
                       .mul(options.scale)
                       .view({n, document.count, length});
    detail::cap_(s, options);
    if (bias.defined())
      s.add_(detail::bias_block(bias, length - document.count, document.count, 0, length));
    if (causal) {
      const auto index = at::TensorOptions(at::kLong).device(q.device());
      const at::Tensor i = at::arange(length - document.count, length, index).unsqueeze(1);
      const at::Tensor j = at::arange(length, index).unsqueeze(0);
      at::Tensor hidden = j > i;
      if (options.window > 0) hidden = hidden.logical_or(i - j >= options.window);
      s = s.masked_fill(hidden, -std::numeric_limits<double>::infinity());
    }
    at::Tensor lse = s.logsumexp(2);
    if (sinks.defined()) lse = at::logaddexp(lse, sinks);
    const at::Tensor p = (s - lse.unsqueeze(2)).exp().to(q.scalar_type());
    const at::Tensor o =
        at::bmm(p.view({g, n / g * document.count, length}), whole(*v_pages).narrow(2, 0, e));
    out.narrow(0, document.first, document.count)
        .copy_(o.view({n, document.count, e}).transpose(0, 1));
  }
  return out;
}

at::Tensor attend(const AttentionOperands& x, const std::vector<Kept>& kept, bool causal,
                  const CoreAttentionOptions& options) {
  const at::Tensor out =
      x.q.is_cpu() ? run_kernel(x, kept, causal, options) : run_operators(x, kept, causal, options);
  return out.view({out.size(0), -1});
}

/// What the new tokens of a pass look at. Values of a size lie in the keys.
std::vector<Kept> kept_of(const KvCache& cache, const KvCache::Layer& pages, int64_t value_size) {
  std::vector<Kept> kept;
  for (const KvCache::Document& document : cache.documents()) {
    if (document.sequence < 0) continue;
    const KvCache::Pages& own = pages[static_cast<size_t>(document.sequence)];
    kept.push_back({document, cache.length(document.sequence) + document.count, &own.k,
                    value_size > 0 ? &own.k : &own.v, value_size});
  }
  return kept;
}

} // namespace

at::Tensor cached_attention(const AttentionOperands& given, const CoreAttentionOptions& options,
                            const void* layer, const nn::ForwardContext& ctx) {
  KvCache& cache = *ctx.cache;
  const KvCache::Layer& pages = cache.append(layer, given.k, given.v);
  AttentionOperands x = given;
  if (cache.fp8()) { // what is attended to does not depend on the pass that reads it
    x.k = nn::from_fp8_rows(nn::to_fp8_rows(x.k), x.k.scalar_type());
    x.v = nn::from_fp8_rows(nn::to_fp8_rows(x.v), x.v.scalar_type());
  }
  if (cache.all_new()) return core_attention(x, ctx.layout->self_attention(), options, ctx).out;
  // Sequences that begin in this pass take the operator that they would take without the others,
  // so that their bits do not depend on these.
  std::vector<AttentionPair> begun;
  std::vector<Kept> kept = kept_of(cache, pages, 0);
  for (const AttentionPair& pair : ctx.layout->self_attention()) {
    const auto same = [&](const Kept& one) {
      return one.document.first == pair.query_begin && one.length == one.document.count;
    };
    if (std::erase_if(kept, same) > 0) begun.push_back(pair);
  }
  const at::Tensor out = attend(x, kept, /*causal=*/true, options);
  if (!begun.empty()) out.add_(core_attention(x, begun, options, ctx).out);
  return out;
}

at::Tensor attention_to_latents(const at::Tensor& q, const KvCache::Layer& kept, int64_t value_size,
                                const CoreAttentionOptions& options,
                                const nn::ForwardContext& ctx) {
  return attend({q, {}, {}}, kept_of(*ctx.cache, kept, value_size), /*causal=*/true, options);
}

at::Tensor attention_to_memory(const at::Tensor& q, const CoreAttentionOptions& options,
                               const void* layer, const nn::ForwardContext& ctx) {
  std::vector<std::vector<at::Tensor>> pages; // one for each memory
  std::vector<std::pair<KvCache::Document, int64_t>> readers;
  for (const KvCache::Document& document : ctx.cache->documents()) {
    if (document.sequence < 0) continue;
    const KvCache::Memory& memory = ctx.cache->memory(layer, document.sequence);
    pages.push_back({memory.k});
    pages.push_back({memory.v});
    readers.emplace_back(document, memory.k.size(0));
  }
  std::vector<Kept> kept;
  for (size_t i = 0; i < readers.size(); ++i)
    kept.push_back({readers[i].first, readers[i].second, &pages[2 * i], &pages[2 * i + 1], 0});
  // Memories differ in length, and the kernel's pages are of one size.
  const at::Tensor out = at::zeros({q.size(0), q.size(1) * q.size(2)}, q.options());
  for (const Kept& one : kept) {
    const at::Tensor part = attend({q, {}, {}}, {one}, /*causal=*/false, options);
    const int64_t first = one.document.first, count = one.document.count;
    out.narrow(0, first, count).copy_(part.narrow(0, first, count));
  }
  return out;
}

} // namespace pentatron::layers
