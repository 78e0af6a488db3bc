#include "pentatron/layers/latent_attention.h"

#include <ATen/ATen.h>

#include "pentatron/base/planted_bug.h"
#include "pentatron/comm/collectives.h"
#include "pentatron/comm/differentiable.h"
#include "pentatron/layers/cached_attention.h"
#include "pentatron/layers/context_attention.h"
#include "pentatron/nn/ops/matmul.h"
#include "pentatron/nn/recompute.h"
#include "pentatron/nn/record.h"

namespace pentatron::layers {

namespace {

parallel::ColumnParallelLinear::Options heads_from(int64_t in, int64_t head_size,
                                                   const AttentionOptions& o) {
  return {.in = in, .parts = {{"heads", o.heads, head_size}}, .init_std = o.init_std};
}

nn::NormOptions norm_of(const AttentionOptions& o) {
  return {.kind = kernels::NormKind::kRmsNorm,
          .eps = o.latent->norm_eps,
          .zero_centered = o.norm_zero_centered};
}

} // namespace

LatentAttention::TokenLinear::TokenLinear(const nn::Scope& scope, int64_t in, int64_t out,
                                          const AttentionOptions& o,
                                          const parallel::TensorParallel& tp)
    : weight(&scope.param("weight",
                          {.name = {}, .shape = {out, in}, .placements = parallel::token_wise(tp)},
                          nn::Init::normal(o.init_std))) {
  weight->linear = true;
  weight->multiplies = nn::ProductRows::kTokens;
  adapters = parallel::TokenAdapters(scope, *weight);
  if (o.qkv_bias)
    bias =
        &scope.param("bias", {.name = {}, .shape = {out}, .placements = parallel::token_wise(tp)},
                     nn::Init::constant(0));
}

at::Tensor LatentAttention::TokenLinear::forward(const at::Tensor& x,
                                                 const nn::ForwardContext& ctx) const {
  return adapters.add_to(nn::linear(x, *weight, bias, ctx), x, ctx);
}

LatentAttention::LatentAttention(const nn::Scope& scope, const AttentionOptions& o,
                                 parallel::TensorParallel tp,
                                 std::shared_ptr<const RotaryTable> rotary,
                                 parallel::ContextWay context)
    : sizes_(*o.latent), local_heads_(o.heads / tp.size()), tp_(tp), rotary_(std::move(rotary)),
      context_(std::move(context)),
      q_a_(sizes_.query_rank > 0 ? std::optional<TokenLinear>(std::in_place, scope / "q_a",
                                                              o.hidden, sizes_.query_rank, o, tp)
                                 : std::nullopt),
      q_a_norm_(q_a_ ? std::optional<Norm>(std::in_place, scope / "q_a_norm", sizes_.query_rank,
                                           norm_of(o), tp)
                     : std::nullopt),
      q_(scope / (q_a_ ? "q_b" : "q"),
         heads_from(q_a_ ? sizes_.query_rank : o.hidden, sizes_.plain_size + sizes_.rotary_size, o),
         tp),
      kv_a_(scope / "kv_a", o.hidden, sizes_.rank + sizes_.rotary_size, o, tp),
      kv_a_norm_(scope / "kv_a_norm", sizes_.rank, norm_of(o), tp),
      kv_b_(scope / "kv_b", heads_from(sizes_.rank, sizes_.plain_size + sizes_.value_size, o), tp),
      proj_(scope / "proj",
            {.in = o.heads * sizes_.value_size,
             .out = o.hidden,
             .bias = o.proj_bias,
             .init_std = o.proj_init_std},
            tp),
      core_(core_attention_options(scope, o, tp)), keys_{.weight = &kv_b_.weight(),
                                                         .sizes = sizes_,
                                                         .heads = local_heads_,
                                                         .adapted = kv_b_.adapted()} {}

void LatentAttention::turn(const at::Tensor& out, const at::Tensor& x, const at::Tensor& positions,
                           bool back) const {
  if (rotary_ != nullptr && rotary_->defined()) {
    rotate(out, x, *rotary_, positions, back);
  } else if (!out.is_same(x)) {
    out.copy_(x);
  }
}

at::Tensor LatentAttention::query_source(const at::Tensor& x, const nn::ForwardContext& ctx) const {
  return q_a_ ? q_a_->forward(x, ctx) : x;
}

at::Tensor LatentAttention::queries(const at::Tensor& source, const nn::ForwardContext& ctx) const {
  return q_.forward(q_a_ ? q_a_norm_->forward(source, ctx) : source, ctx);
}

LatentAttention::Latents LatentAttention::latents(const at::Tensor& x,
                                                  const nn::ForwardContext& ctx) const {
  const at::Tensor both = kv_a_.forward(x, ctx);
  const at::Tensor positions = ctx.layout->outer(ctx.layout->positions);
  const int64_t r = sizes_.rank, d = sizes_.rotary_size;
  at::Tensor latent, key;
  {
    const nn::NoAutograd guard;
    const at::Tensor source = both.detach();
    latent = source.narrow(1, 0, r).contiguous();
    key = at::empty({source.size(0), d}, source.options());
    turn(key.unsqueeze(1), source.narrow(1, r, d).unsqueeze(1), positions, false);
  }
  nn::record("split_latents", {both}, {latent, key}, {positions},
             [this, r, d](auto&& grads, nn::Saved& saved) {
               const nn::NoAutograd guard;
               const at::Tensor dboth = at::empty({grads[0].size(0), r + d}, grads[0].options());
               dboth.narrow(1, 0, r).copy_(grads[0]);
               turn(dboth.narrow(1, r, d).unsqueeze(1), grads[1].contiguous().unsqueeze(1),
                    saved[0], true);
               return std::vector<at::Tensor>{dboth};
             });
  if (tp_.sequence) {
    key = comm::all_gather(key, 0, tp_.group);
  } else if (!planted("rotary_key_gradient_not_summed")) {
    key = comm::copy_to(key, tp_.group);
  }
  return {kv_a_norm_.forward(latent, ctx), key};
}

AttentionOperands LatentAttention::expand(const at::Tensor& q_flat, const Latents& latents,
                                          const nn::ForwardContext& ctx) const {
  const at::Tensor kv_flat = kv_b_.forward(latents.latent, ctx);
  const int64_t n = local_heads_, p = sizes_.plain_size, d = sizes_.rotary_size,
                e = sizes_.value_size;
  const at::Tensor positions = ctx.layout->positions;
  AttentionOperands out;
  {
    const nn::NoAutograd guard;
    out.q = q_flat.detach().unflatten(1, {n, p + d});
    turn(rotary_part(out.q), rotary_part(out.q), positions, false); // q_ does not need its output
    const at::Tensor kv = kv_flat.detach().unflatten(1, {n, p + e});
    out.k = at::empty(out.q.sizes(), out.q.options());
    out.k.narrow(2, 0, p).copy_(kv.narrow(2, 0, p));
    rotary_part(out.k).copy_(latents.key.detach().unsqueeze(1).expand({-1, n, d}));
    out.v = kv.narrow(2, p, e).contiguous(); // a copy, so that the plain keys are kept once
  }
  nn::record(
      "expand_latents", {q_flat, kv_flat, latents.key}, {out.q, out.k, out.v}, {positions},
      [this, n, p, e](auto&& grads, nn::Saved& saved) {
        const nn::NoAutograd guard;
        const at::Tensor &dq = grads[0], &dk = grads[1], &dv = grads[2];
        const int64_t tokens = dq.size(0);
        const at::Tensor dq_own = at::empty(dq.sizes(), dq.options());
        dq_own.narrow(2, 0, p).copy_(dq.narrow(2, 0, p));
        turn(rotary_part(dq_own), rotary_part(dq), saved[0], true);
        const at::Tensor dkv = at::empty({tokens, n, p + e}, dk.options());
        dkv.narrow(2, 0, p).copy_(dk.narrow(2, 0, p));
        dkv.narrow(2, p, e).copy_(dv);
        const at::Tensor dkey =
            rotary_part(dk).sum({1}, false, nn::acc_dtype(dk.scalar_type())).to(dk.scalar_type());
        return std::vector<at::Tensor>{dq_own.flatten(1), dkv.flatten(1), dkey};
      });
  return out;
}

at::Tensor LatentAttention::attend_absorbed(const at::Tensor& q_flat,
                                            const nn::KvCache::Layer& kept,
                                            const nn::ForwardContext& ctx) const {
  const int64_t n = local_heads_, p = sizes_.plain_size, d = sizes_.rotary_size,
                e = sizes_.value_size, r = sizes_.rank, tokens = q_flat.size(0);
  const at::Tensor q = q_flat.unflatten(1, {n, p + d});
  const std::vector<nn::VariantRows> groups = nn::all_rows(ctx.variant_rows, tokens);
  std::vector<at::Tensor> weights; // of each group
  for (const nn::VariantRows& group : groups)
    weights.push_back(kv_b_.weight_of(group.variant).view({n, p + e, r}));
  // Head after head, so that the result of a token does not depend on how many there are.
  const auto of_heads = [&](const auto& product) {
    for (size_t i = 0; i < groups.size(); ++i)
      for (int64_t head = 0; head < n; ++head)
        product(weights[i][head], [&](const at::Tensor& all) { // the group's rows of the head
          return all.narrow(0, groups[i].begin, groups[i].size).select(1, head);
        });
  };
  const at::Tensor read = at::empty({tokens, n, r + d}, q.options());
  of_heads([&](const at::Tensor& weight, const auto& own) {
    nn::matmul_nn_into(own(read).narrow(1, 0, r), own(q).narrow(1, 0, p), weight.narrow(0, 0, p));
  });
  turn(read.narrow(2, r, d), rotary_part(q), ctx.layout->positions, false);
  const at::Tensor latent = attention_to_latents(read, kept, r, core_, ctx).unflatten(1, {n, r});
  const at::Tensor out = at::empty({tokens, n, e}, q.options());
  of_heads([&](const at::Tensor& weight, const auto& own) {
    nn::matmul_nt_into(own(out), own(latent), weight.narrow(0, p, e));
  });
  return out.flatten(1);
}

at::Tensor LatentAttention::turned(const at::Tensor& q_flat, const nn::ForwardContext& ctx) const {
  const at::Tensor positions = ctx.layout->positions;
  at::Tensor q;
  {
    const nn::NoAutograd guard;
    q = q_flat.detach().unflatten(1, {local_heads_, keys_.key_size()});
    turn(rotary_part(q), rotary_part(q), positions, false); // q_ does not need its output
  }
  nn::record("turn_queries", {q_flat}, {q}, {positions}, [this](auto&& grads, nn::Saved& saved) {
    const nn::NoAutograd guard;
    const at::Tensor dq = grads[0].clone();
    turn(rotary_part(dq), rotary_part(dq), saved[0], true);
    return std::vector<at::Tensor>{dq.flatten(1)};
  });
  return q;
}

at::Tensor LatentAttention::attend_travelling(const at::Tensor& q, const Latents& own,
                                              const nn::ForwardContext& ctx) const {
  // Each tensor rank adds the gradient of its heads, as ColumnParallelLinear would sum it.
  const at::Tensor latent = tp_.sequence ? comm::all_gather(own.latent, 0, tp_.group)
                            : planted("latent_gradient_of_one_tensor_rank")
                                ? own.latent
                                : comm::copy_to(own.latent, tp_.group);
  return context_attention(q, at::cat({latent, own.key}, 1).unsqueeze(1), keys_, core_, context_,
                           ctx);
}

at::Tensor LatentAttention::forward(const at::Tensor& x, const nn::ForwardContext& ctx) const {
  using Tensors = std::vector<at::Tensor>;
  const Latents own = latents(x, ctx);
  const at::Tensor source = query_source(x, ctx);
  if (ctx.cache != nullptr) {
    const at::Tensor all = tp_.sequence ? comm::all_gather(own.latent, 0, tp_.group) : own.latent;
    const nn::KvCache::Layer& kept =
        ctx.cache->append(this, at::cat({all, own.key}, 1).unsqueeze(1), {});
    if (!ctx.cache->all_new() || ctx.cache->fp8()) // always from what is kept
      return proj_.forward(attend_absorbed(queries(source, ctx), kept, ctx), ctx);
  }
  if (ctx.layout->whole != nullptr && latents_travel(keys_, context_)) {
    const auto up = [this](const Tensors& in, const nn::ForwardContext& c) {
      return Tensors{turned(queries(in[0], c), c)};
    };
    const auto core = [this](const Tensors& in, const nn::ForwardContext& c) {
      return Tensors{attend_travelling(in[0], {in[1], in[2]}, c)};
    };
    const at::Tensor q = nn::run_part(nn::Part::kMlaUpProj, up, {source}, ctx)[0];
    return proj_.forward(
        nn::run_part(nn::Part::kCoreAttention, core, {q, own.latent, own.key}, ctx)[0], ctx);
  }
  const auto up = [this](const Tensors& in, const nn::ForwardContext& c) {
    const AttentionOperands out = expand(queries(in[0], c), {in[1], in[2]}, c);
    return Tensors{out.q, out.k, out.v};
  };
  const auto core = [this](const Tensors& in, const nn::ForwardContext& c) {
    const AttentionOperands x{in[0], in[1], in[2]};
    return Tensors{c.layout->whole != nullptr
                       ? context_attention(x, core_, context_, c)
                       : core_attention(x, c.layout->self_attention(), core_, c).out};
  };
  const Tensors operands =
      nn::run_part(nn::Part::kMlaUpProj, up, {source, own.latent, own.key}, ctx);
  return proj_.forward(nn::run_part(nn::Part::kCoreAttention, core, operands, ctx)[0], ctx);
}

nn::Cost LatentAttention::cost(const AttentionOptions& o, const nn::LayerShape& shape) {
  const LatentSizes& s = *o.latent;
  const int64_t t = shape.tokens, n = o.heads / shape.tp, keys = s.plain_size + s.rotary_size,
                read = s.query_rank > 0 ? s.query_rank : o.hidden, latents = s.query_rank + s.rank;
  nn::Cost cost;
  cost.forward_gemm_flops =
      2.0 * static_cast<double>(t) *
      static_cast<double>(o.hidden * (latents + s.rotary_size) + read * n * keys +
                          s.rank * n * (s.plain_size + s.value_size) + o.hidden * n * s.value_size);
  cost.input_gemm_flops =
      2.0 * static_cast<double>(t) * static_cast<double>(o.hidden) *
      static_cast<double>((s.query_rank > 0 ? s.query_rank : n * keys) + s.rank + s.rotary_size);
  cost.forward_attention_flops =
      visible_squares(o, shape) * static_cast<double>(n * (keys + s.value_size));
  // Keys and values, unless latents travel: then they are made where they are needed.
  const int64_t made = n * (keys + s.value_size), travelling = s.rank + s.rotary_size;
  const bool travel = shape.keys_travel && travelling < made;
  const int64_t kept = travel ? travelling : made;
  // The input, the latents before and behind their norms, what attention keeps.
  const int64_t outer = shape.outer_tokens();
  cost.saved_bytes = shape.element_bytes * outer * (o.hidden + 2 * latents) +
                     shape.element_bytes * t * (n * (keys + s.value_size) + kept) +
                     shape.acc_bytes * (t * n + outer * (s.query_rank > 0 ? 2 : 1));
  // Gradients of the result and of queries, keys and values.
  cost.attention_working_bytes = shape.element_bytes * t * n * 2 * (keys + s.value_size);
  cost.bytes_of(nn::Part::kCoreAttention) =
      shape.element_bytes * t * (n * s.value_size + (travel ? kept : 0)) + shape.acc_bytes * t * n;
  cost.flops_of(nn::Part::kCoreAttention) = cost.forward_attention_flops;
  // In the place of keys and values the rotary keys are kept.
  cost.bytes_of(nn::Part::kMlaUpProj) =
      shape.element_bytes *
          (outer * s.query_rank + t * (n * keys + (travel ? 0 : kept - s.rotary_size))) +
      (s.query_rank > 0 ? shape.acc_bytes * outer : 0);
  cost.flops_of(nn::Part::kMlaUpProj) =
      2.0 * static_cast<double>(t) *
      static_cast<double>(read * n * keys + s.rank * n * (s.plain_size + s.value_size));
  if (shape.tp > 1)
    cost.tp_all_reduce = {shape.element_bytes * t * (o.hidden + read + s.rank + s.rotary_size), 4};
  return cost;
}

} // namespace pentatron::layers
