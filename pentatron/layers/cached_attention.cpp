#include "pentatron/layers/cached_attention.h"

#include <limits>

#include <ATen/ATen.h>

#include "pentatron/kernels/attention/cached_attention.h"
#include "pentatron/layers/core_attention_detail.h"
#include "pentatron/nn/ops/kernel_args.h"

namespace pentatron::layers {

namespace {

using nn::KvCache;

at::Tensor run_kernel(const at::Tensor& q, const KvCache& cache, const KvCache::Layer& layer,
                      const CoreAttentionOptions& options) {
  // Tokens without a sequence are nobody's.
  const at::Tensor out = at::zeros({q.size(0), q.size(1), q.size(2)}, q.options());
  std::vector<kernels::CachedSequence> sequences;
  for (const KvCache::Document& document : cache.documents()) {
    if (document.sequence < 0) continue;
    sequences.push_back({.first = document.first,
                         .count = document.count,
                         .length = cache.length(document.sequence) + document.count,
                         .k = layer.k.select(0, document.sequence).const_data_ptr(),
                         .v = layer.v.select(0, document.sequence).const_data_ptr()});
  }
  const at::Tensor sinks = detail::sink_logits(q, options);
  const kernels::CachedAttention args{.dtype = nn::kernel_dtype(q.scalar_type()),
                                      .heads = q.size(1),
                                      .kv_heads = layer.k.size(2),
                                      .head_size = q.size(2),
                                      .sequences = sequences,
                                      .q = {q.data_ptr(), q.stride(0), q.stride(1)},
                                      .out = {out.data_ptr(), out.stride(0), out.stride(1)},
                                      .kv_token_stride = layer.k.stride(1),
                                      .kv_head_stride = layer.k.stride(2),
                                      .scale = options.scale,
                                      .window = options.window,
                                      .sinks = nn::data_or_null(sinks)};
  kernels::cached_attention(args, nn::KernelContext(q, kernels::workspace_bytes(args)));
  return out;
}

/// LibTorch's operators, on any device.
at::Tensor run_operators(const at::Tensor& q, const KvCache& cache, const KvCache::Layer& layer,
                         const at::Tensor& bias, const CoreAttentionOptions& options) {
  const int64_t n = q.size(1), g = layer.k.size(2), d = q.size(2);
  const at::Tensor out = at::zeros({q.size(0), n, d}, q.options());
  const at::Tensor sinks = detail::sink_logits(q, options);
  const auto acc = q.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  for (const KvCache::Document& document : cache.documents()) {
    if (document.sequence < 0 || document.count == 0) continue;
    const int64_t length = cache.length(document.sequence) + document.count;
    const auto kept = [&](const at::Tensor& x) { // [g, length, d]
      return x.select(0, document.sequence).narrow(0, 0, length).transpose(0, 1);
    };
    const at::Tensor rows = q.narrow(0, document.first, document.count)
                                .unflatten(1, {g, n / g})
                                .permute({1, 2, 0, 3})
                                .reshape({g, n / g * document.count, d});
    at::Tensor s = at::bmm(rows, kept(layer.k).transpose(1, 2))
                       .to(acc)
                       .mul(options.scale)
                       .view({n, document.count, length});
    detail::cap_(s, options);
    if (bias.defined())
      s.add_(detail::bias_block(bias, length - document.count, document.count, 0, length));
    const auto index = at::TensorOptions(at::kLong).device(q.device());
    const at::Tensor i = at::arange(length - document.count, length, index).unsqueeze(1);
    const at::Tensor j = at::arange(length, index).unsqueeze(0);
    at::Tensor hidden = j > i;
    if (options.window > 0) hidden = hidden.logical_or(i - j >= options.window);
    s = s.masked_fill(hidden, -std::numeric_limits<double>::infinity());
    at::Tensor lse = s.logsumexp(2);
    if (sinks.defined()) lse = at::logaddexp(lse, sinks);
    const at::Tensor p = (s - lse.unsqueeze(2)).exp().to(q.scalar_type());
    const at::Tensor o = at::bmm(p.view({g, n / g * document.count, length}), kept(layer.v));
    out.narrow(0, document.first, document.count)
        .copy_(o.view({n, document.count, d}).transpose(0, 1));
  }
  return out;
}

} // namespace

at::Tensor cached_attention(const AttentionOperands& x, const CoreAttentionOptions& options,
                            const void* layer, const nn::ForwardContext& ctx) {
  KvCache& cache = *ctx.cache;
  const KvCache::Layer& kept = cache.append(layer, x.k, x.v);
  if (cache.all_new()) return core_attention(x, ctx.layout->self_attention(), options, ctx).out;
  const bool fused = x.q.is_cpu() && options.cap == 0 && !x.bias.defined();
  const at::Tensor out = fused ? run_kernel(x.q, cache, kept, options)
                               : run_operators(x.q, cache, kept, x.bias, options);
  return out.view({out.size(0), -1});
}

} // namespace pentatron::layers
