#include "pentatron/layers/attention.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "pentatron/layers/cached_attention.h"
#include "pentatron/layers/context_attention.h"
#include "pentatron/nn/ops/kernel_args.h"
#include "pentatron/nn/recompute.h"
#include "pentatron/nn/record.h"

namespace pentatron::layers {

namespace {

parallel::ColumnParallelLinear::Options qkv_options(const AttentionOptions& o) {
  // Key and value heads either divide over the ranks, or ranks divide over them: so a rank's query
  // heads are those of its key-value heads.
  return {.in = o.hidden,
          .parts = {{"q", o.heads, o.head_size},
                    {"k", o.kv_heads, o.head_size, /*in_groups=*/true},
                    {"v", o.kv_heads, o.head_size, /*in_groups=*/true}},
          .bias = o.qkv_bias,
          .init_std = o.init_std};
}

/// Features [begin, begin + heads * d) of every token as [T, heads, d], sharing storage.
at::Tensor head_view(const at::Tensor& qkv, int64_t begin, int64_t heads, int64_t d) {
  return qkv.narrow(1, begin, heads * d).unflatten(1, {heads, d});
}

} // namespace

Attention::Attention(const nn::Scope& scope, const AttentionOptions& options,
                     parallel::TensorParallel tp, std::shared_ptr<const RotaryTable> rotary,
                     std::shared_ptr<const RelativeBias> bias, parallel::ContextWay context)
    : options_(options), rotary_(std::move(rotary)), bias_(std::move(bias)),
      context_(std::move(context)), qkv_(scope / "qkv", qkv_options(options), tp),
      proj_(scope / "proj",
            {.in = options.heads * options.head_size,
             .out = options.hidden,
             .bias = options.proj_bias,
             .init_std = options.proj_init_std},
            tp) {
  local_heads_ = options.heads / tp.size();
  local_kv_heads_ = std::max<int64_t>(1, options.kv_heads / tp.size());
  if (options.qk_norm != QkNorm::kNone) {
    HeadsNormOptions norm{.kind = options.qk_norm,
                          .heads = options.heads,
                          .head_size = options.head_size,
                          .eps = options.norm_eps,
                          .zero_centered = options.norm_zero_centered};
    q_norm_.emplace(scope, "q_norm.weight", norm, tp);
    norm.heads = options.kv_heads;
    norm.in_groups = true;
    k_norm_.emplace(scope, "k_norm.weight", norm, tp);
  }
  core_ = core_attention_options(scope, options, tp);
}

Attention::Heads Attention::split(const at::Tensor& qkv, const nn::ForwardContext& ctx) const {
  const int64_t n = local_heads_, g = local_kv_heads_, d = options_.head_size;
  const bool rotary = rotary_ != nullptr && rotary_->defined();
  const at::Tensor positions = ctx.layout->positions;
  at::Tensor kept, q_rstd, k_rstd; // what q and k were before their norms, and its statistics
  Heads out;
  {
    const nn::NoAutograd guard;
    const at::Tensor source = qkv.detach();
    out = {head_view(source, 0, n, d), head_view(source, n * d, g, d),
           head_view(source, (n + g) * d, g, d)};
    if (q_norm_) {
      q_norm_->use(ctx);
      k_norm_->use(ctx);
      kept = source;
      out.q = q_norm_->forward(out.q, q_rstd);
      out.k = k_norm_->forward(out.k, k_rstd);
    }
    if (rotary) { // in place: the projection that made q and k does not need them
      rotate(out.q, out.q, *rotary_, positions, false);
      rotate(out.k, out.k, *rotary_, positions, false);
    }
  }
  nn::record(
      "split_heads", {qkv}, {out.q, out.k, out.v},
      {rotary ? positions : at::Tensor(), kept, q_rstd, k_rstd},
      [this, n, g, d, rotary](auto&& grads, nn::Saved& saved) {
        const nn::NoAutograd guard;
        const at::Tensor dqkv = at::empty({grads[0].size(0), (n + 2 * g) * d}, grads[0].options());
        const at::Tensor positions = saved[0], kept = saved[1];
        const auto back = [&](const at::Tensor& dy, int64_t begin, int64_t heads,
                              const std::optional<HeadsNorm>& norm, const at::Tensor& rstd) {
          at::Tensor target = head_view(dqkv, begin, heads, d);
          if (!norm) {
            if (rotary) {
              rotate(target, dy, *rotary_, positions, true);
            } else {
              target.copy_(dy);
            }
            return;
          }
          const at::Tensor dn = dy.contiguous();
          if (rotary) rotate(dn, dn, *rotary_, positions, true);
          norm->backward(target, dn, head_view(kept, begin, heads, d), rstd);
        };
        back(grads[0], 0, n, q_norm_, saved[2]);
        back(grads[1], n * d, g, k_norm_, saved[3]);
        head_view(dqkv, (n + g) * d, g, d).copy_(grads[2]);
        return std::vector<at::Tensor>{dqkv};
      });
  return out;
}

at::Tensor Attention::attend(const Heads& heads, const nn::ForwardContext& ctx) const {
  AttentionOperands x{heads.q, heads.k, heads.v};
  int64_t span = ctx.layout->sequence;
  const bool cached = ctx.cache != nullptr && options_.mask == AttentionMask::kCausal;
  if (cached) {
    for (const nn::KvCache::Document& document : ctx.cache->documents()) {
      if (document.sequence >= 0)
        span = std::max(span, ctx.cache->length(document.sequence) + document.count);
    }
  }
  if (bias_ != nullptr) x.bias = bias_->table(span, ctx);
  if (cached) return cached_attention(x, core_, this, ctx);
  const auto core = [this](const std::vector<at::Tensor>& in, const nn::ForwardContext& c) {
    const AttentionOperands all{in[0], in[1], in[2], in[3]};
    return std::vector<at::Tensor>{
        c.layout->whole != nullptr ? context_attention(all, core_, context_, c)
                                   : core_attention(all, c.layout->self_attention(), core_, c).out};
  };
  return nn::run_part(nn::Part::kCoreAttention, core, {x.q, x.k, x.v, x.bias}, ctx)[0];
}

at::Tensor Attention::forward(const at::Tensor& x, const nn::ForwardContext& ctx) const {
  return proj_.forward(attend(split(qkv_.forward(x, ctx), ctx), ctx), ctx);
}

nn::Cost Attention::cost(const AttentionOptions& o, const nn::LayerShape& shape) {
  const int64_t t = shape.tokens, n = o.heads / shape.tp,
                g = std::max<int64_t>(1, o.kv_heads / shape.tp), d = o.head_size;
  const int64_t qkv = (n + 2 * g) * d;
  nn::Cost cost;
  cost.forward_gemm_flops = 2.0 * static_cast<double>(t) * static_cast<double>(o.hidden) *
                            static_cast<double>(qkv + n * d);
  cost.input_gemm_flops =
      2.0 * static_cast<double>(t) * static_cast<double>(o.hidden) * static_cast<double>(qkv);
  // Two products over the visible part of the squares.
  cost.forward_attention_flops = 2.0 * visible_squares(o, shape) * static_cast<double>(n * d);
  cost.saved_bytes = shape.element_bytes * (shape.outer_tokens() * o.hidden + t * (qkv + n * d)) +
                     shape.acc_bytes * t * n;
  // Gradients of the result and of the operands, which take the places of what was kept of them;
  // under sequence parallelism also gathered tokens, and their gradients.
  cost.attention_working_bytes =
      shape.element_bytes * t *
      (shape.gathers_again() ? std::max(n * d + std::max(qkv, o.hidden), 2 * o.hidden - n * d)
                             : n * d + qkv);
  cost.bytes_of(nn::Part::kCoreAttention) =
      shape.element_bytes * t * n * d + shape.acc_bytes * t * n;
  cost.flops_of(nn::Part::kCoreAttention) = cost.forward_attention_flops;
  if (shape.tp > 1) cost.tp_all_reduce = {2 * shape.element_bytes * t * o.hidden, 2};
  if (o.qk_norm != QkNorm::kNone) {
    const int64_t rows = o.qk_norm == QkNorm::kHead ? t * (n + g) : 2 * t;
    cost.saved_bytes += shape.element_bytes * t * (n + g) * d + shape.acc_bytes * rows;
  }
  if (o.qk_norm == QkNorm::kProjection && shape.tp > 1) {
    cost.tp_all_reduce.bytes += 4 * shape.acc_bytes * t;
    cost.tp_all_reduce.count += 4;
  }
  return cost;
}

} // namespace pentatron::layers
