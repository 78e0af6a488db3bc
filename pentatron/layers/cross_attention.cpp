#include "pentatron/layers/cross_attention.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "pentatron/base/planted_bug.h"
#include "pentatron/layers/cached_attention.h"
#include "pentatron/nn/recompute.h"
#include "pentatron/nn/record.h"

namespace pentatron::layers {

namespace {

int64_t memory_width(const CrossAttentionOptions& o) {
  return o.memory > 0 ? o.memory : o.hidden;
}

} // namespace

CrossAttention::CrossAttention(const nn::Scope& scope, const CrossAttentionOptions& o,
                               parallel::TensorParallel tp)
    : options_(o), q_(scope / "q",
                      {.in = o.hidden,
                       .parts = {{"q", o.heads, o.head_size}},
                       .bias = o.qkv_bias,
                       .init_std = o.init_std},
                      tp),
      kv_(scope / "kv",
          {.in = memory_width(o),
           .parts = {{"k", o.kv_heads, o.head_size, /*in_groups=*/true},
                     {"v", o.kv_heads, o.head_size, /*in_groups=*/true}},
           .bias = o.qkv_bias,
           .init_std = o.init_std},
          tp),
      proj_(scope / "proj",
            {.in = o.heads * o.head_size,
             .out = o.hidden,
             .bias = o.proj_bias,
             .init_std = o.proj_init_std},
            tp) {
  kv_.weight().multiplies = nn::ProductRows::kMemory;
  core_ = {.mask = AttentionMask::kFull,
           .scale = o.scale > 0 ? o.scale : 1.0 / std::sqrt(static_cast<double>(o.head_size)),
           .dropout = o.dropout,
           .site = o.dropout_site,
           .head_offset = planted("cross_attention_dropout_by_local_head")
                              ? 0
                              : tp.rank() * (o.heads / tp.size()),
           .name = scope.prefix()};
}

CrossAttention::Memory CrossAttention::keys_and_values(const at::Tensor& memory,
                                                       const nn::ForwardContext& ctx) const {
  const at::Tensor kv = kv_.forward(memory, ctx);
  const int64_t d = options_.head_size, width = kv.size(1) / 2;
  const auto part = [&](const at::Tensor& x, int64_t begin) {
    return x.narrow(1, begin, width).unflatten(1, {width / d, d});
  };
  Memory result;
  {
    const nn::NoAutograd guard;
    const at::Tensor source = kv.detach();
    result = {part(source, 0), part(source, width)};
  }
  nn::record("split_keys_and_values", {kv}, {result.k, result.v}, {}, [](auto&& grads, nn::Saved&) {
    const nn::NoAutograd guard;
    return std::vector<at::Tensor>{at::cat({grads[0].flatten(1), grads[1].flatten(1)}, 1)};
  });
  return result;
}

at::Tensor CrossAttention::attend(const at::Tensor& x, const Memory& memory,
                                  const nn::SequenceLayout& memory_layout,
                                  const nn::ForwardContext& ctx) const {
  const at::Tensor q = q_.forward(x, ctx).unflatten(1, {-1, options_.head_size});
  const auto core = [this, &memory_layout](const std::vector<at::Tensor>& in,
                                           const nn::ForwardContext& c) {
    return std::vector<at::Tensor>{
        core_attention({in[0], in[1], in[2]}, c.layout->cross_attention(memory_layout), core_, c)
            .out};
  };
  return proj_.forward(
      nn::run_part(nn::Part::kCoreAttention, core, {q, memory.k, memory.v}, ctx)[0], ctx);
}

at::Tensor CrossAttention::forward(const at::Tensor& x, const at::Tensor& memory,
                                   const nn::SequenceLayout& memory_layout,
                                   const nn::ForwardContext& ctx) const {
  if (ctx.cache != nullptr) return generate(x, memory, ctx);
  return attend(x, keys_and_values(memory, ctx), memory_layout, ctx);
}

at::Tensor CrossAttention::generate(const at::Tensor& x, const at::Tensor& memory,
                                    const nn::ForwardContext& ctx) const {
  if (!ctx.cache->sources().empty()) {
    const Memory made = keys_and_values(memory, ctx);
    for (const nn::KvCache::Document& source : ctx.cache->sources()) {
      if (source.sequence < 0) continue;
      const auto part = [&](const at::Tensor& rows) {
        return rows.narrow(0, source.first, source.count).contiguous();
      };
      ctx.cache->set_memory(this, source.sequence, {part(made.k), part(made.v)});
    }
  }
  const at::Tensor q = q_.forward(x, ctx).unflatten(1, {-1, options_.head_size});
  return proj_.forward(attention_to_memory(q, core_, this, ctx), ctx);
}

nn::Cost CrossAttention::cost(const CrossAttentionOptions& o, const nn::LayerShape& shape) {
  const int64_t t = shape.tokens, m = shape.memory_tokens, n = o.heads / shape.tp,
                g = std::max<int64_t>(1, o.kv_heads / shape.tp), d = o.head_size;
  const auto product = [](int64_t a, int64_t b, int64_t c) {
    return 2.0 * static_cast<double>(a) * static_cast<double>(b) * static_cast<double>(c);
  };
  nn::Cost cost;
  cost.memory_gemm_flops = product(m, memory_width(o), 2 * g * d);
  cost.forward_gemm_flops = 2 * product(t, o.hidden, n * d) + cost.memory_gemm_flops;
  cost.forward_attention_flops = 2 * product(shape.crossed_lengths, n, d);
  cost.saved_bytes =
      shape.element_bytes * (shape.outer_tokens() * o.hidden + t * 2 * n * d + m * 2 * g * d) +
      shape.acc_bytes * t * n;
  cost.attention_working_bytes = shape.element_bytes * (2 * t * n * d + m * 2 * g * d);
  cost.bytes_of(nn::Part::kCoreAttention) =
      shape.element_bytes * t * n * d + shape.acc_bytes * t * n;
  cost.flops_of(nn::Part::kCoreAttention) = cost.forward_attention_flops;
  // The memory's gradient is summed once more.
  if (shape.tp > 1)
    cost.tp_all_reduce = {shape.element_bytes * (2 * t * o.hidden + m * memory_width(o)), 3};
  return cost;
}

} // namespace pentatron::layers
