#include "pentatron/layers/attention.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "pentatron/base/planted_bug.h"
#include "pentatron/layers/cached_attention.h"
#include "pentatron/nn/ops/kernel_args.h"
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

struct HeadNorm {
  nn::Param* weight = nullptr;
  at::Tensor rstd;
};

/// RMSNorm of every head: x [T, heads, d] (strided) -> contiguous.
at::Tensor norm_heads(const at::Tensor& x, HeadNorm& norm, const AttentionOptions& options) {
  at::Tensor y = at::empty(x.sizes(), x.options());
  norm.rstd = at::empty({x.size(0) * x.size(1)}, x.options().dtype(nn::acc_dtype(x.scalar_type())));
  kernels::norm_forward(
      {.kind = kernels::NormKind::kRmsNorm,
       .dtype = nn::kernel_dtype(x.scalar_type()),
       .weight_dtype = nn::kernel_dtype(x.scalar_type()),
       .rows = x.size(0) * x.size(1),
       .cols = x.size(2),
       .x = x.data_ptr(),
       .weight = norm.weight->value().data_ptr(),
       .y = y.data_ptr(),
       .rstd = norm.rstd.data_ptr(),
       .x_rows = {.stride = x.stride(1), .group_rows = x.size(1), .group_stride = x.stride(0)},
       .eps = options.norm_eps,
       .zero_centered = options.norm_zero_centered},
      nn::KernelContext(x));
  return y;
}

/// Writes the gradient of x into dx (strided as x).
void norm_heads_backward(const at::Tensor& dx, const at::Tensor& dy, const at::Tensor& x,
                         const HeadNorm& norm, const AttentionOptions& options) {
  const bool train = norm.weight->trainable;
  const kernels::NormBackward args{
      .kind = kernels::NormKind::kRmsNorm,
      .dtype = nn::kernel_dtype(x.scalar_type()),
      .weight_dtype = nn::kernel_dtype(x.scalar_type()),
      .rows = x.size(0) * x.size(1),
      .cols = x.size(2),
      .dy = dy.data_ptr(),
      .x = x.data_ptr(),
      .weight = norm.weight->value().data_ptr(),
      .rstd = norm.rstd.data_ptr(),
      .dx = dx.data_ptr(),
      .dweight = train ? norm.weight->main_grad().data_ptr() : nullptr,
      .x_rows = {.stride = x.stride(1), .group_rows = x.size(1), .group_stride = x.stride(0)},
      .dx_rows = {.stride = dx.stride(1), .group_rows = dx.size(1), .group_stride = dx.stride(0)},
      .zero_centered = options.norm_zero_centered};
  kernels::norm_backward(args, nn::KernelContext(x, kernels::workspace_bytes(args)));
  if (train) norm.weight->accumulated();
}

} // namespace

Attention::Attention(const nn::Scope& scope, const AttentionOptions& options,
                     parallel::TensorParallel tp, std::shared_ptr<const RotaryTable> rotary)
    : options_(options), rotary_(std::move(rotary)), qkv_(scope / "qkv", qkv_options(options), tp),
      proj_(scope / "proj",
            {.in = options.heads * options.head_size,
             .out = options.hidden,
             .bias = options.proj_bias,
             .init_std = options.proj_init_std},
            tp) {
  local_heads_ = options.heads / tp.size();
  local_kv_heads_ = std::max<int64_t>(1, options.kv_heads / tp.size());
  if (options.qk_norm) {
    const nn::Init init = nn::Init::constant(options.norm_zero_centered ? 0 : 1);
    const std::map<std::string, nn::Placement> placements = {
        {"tp", planted("head_norm_gradient_not_summed")
                   ? nn::Placement::replicate()
                   : nn::Placement::partial()}}; // used by split heads
    q_norm_ =
        &scope.param("q_norm.weight",
                     {.name = {}, .shape = {options.head_size}, .placements = placements}, init);
    k_norm_ =
        &scope.param("k_norm.weight",
                     {.name = {}, .shape = {options.head_size}, .placements = placements}, init);
  }
  core_ = {.scale = options.scale > 0 ? options.scale
                                      : 1.0 / std::sqrt(static_cast<double>(options.head_size)),
           .window = options.window,
           .softmax = options.softmax,
           .dropout = options.dropout,
           .site = options.dropout_site,
           .head_offset =
               planted("attention_dropout_by_local_head") ? 0 : tp.rank() * local_heads_};
  if (options.softmax == SoftmaxKind::kLearnable) {
    core_.sinks = &scope.param(
        "sinks",
        {.name = {}, .shape = {options.heads}, .placements = {{"tp", nn::Placement::shard(0)}}},
        nn::Init::constant(0));
  }
}

Attention::Heads Attention::split(const at::Tensor& qkv, const nn::ForwardContext& ctx) const {
  const int64_t n = local_heads_, g = local_kv_heads_, d = options_.head_size;
  const bool rotary = rotary_ != nullptr && rotary_->defined();
  const at::Tensor positions = ctx.layout->positions;
  HeadNorm q_norm{q_norm_, {}}, k_norm{k_norm_, {}};
  ctx.use(q_norm_);
  ctx.use(k_norm_);
  at::Tensor kept; // what q and k were before their norms
  Heads out;
  {
    const nn::NoAutograd guard;
    const at::Tensor source = qkv.detach();
    out = {head_view(source, 0, n, d), head_view(source, n * d, g, d),
           head_view(source, (n + g) * d, g, d)};
    if (options_.qk_norm) {
      kept = source;
      out.q = norm_heads(out.q, q_norm, options_);
      out.k = norm_heads(out.k, k_norm, options_);
    }
    if (rotary) { // in place: the projection that made q and k does not need them
      rotate(out.q, out.q, *rotary_, positions, false);
      rotate(out.k, out.k, *rotary_, positions, false);
    }
  }
  nn::record(
      "split_heads", {qkv}, {out.q, out.k, out.v},
      [this, n, g, d, rotary, positions, kept, q_norm, k_norm](std::vector<at::Tensor>&& grads) {
        const nn::NoAutograd guard;
        const at::Tensor dqkv = at::empty({grads[0].size(0), (n + 2 * g) * d}, grads[0].options());
        const auto back = [&](const at::Tensor& dy, int64_t begin, int64_t heads,
                              const HeadNorm& norm) {
          at::Tensor target = head_view(dqkv, begin, heads, d);
          if (norm.weight == nullptr) {
            if (rotary) {
              rotate(target, dy, *rotary_, positions, true);
            } else {
              target.copy_(dy);
            }
            return;
          }
          const at::Tensor dn = dy.contiguous();
          if (rotary) rotate(dn, dn, *rotary_, positions, true);
          norm_heads_backward(target, dn, head_view(kept, begin, heads, d), norm, options_);
        };
        back(grads[0], 0, n, q_norm);
        back(grads[1], n * d, g, k_norm);
        head_view(dqkv, (n + g) * d, g, d).copy_(grads[2]);
        return std::vector<at::Tensor>{dqkv};
      });
  return out;
}

at::Tensor Attention::forward(const at::Tensor& x, const nn::ForwardContext& ctx) const {
  const Heads heads = split(qkv_.forward(x, ctx), ctx);
  const at::Tensor attended = ctx.cache != nullptr
                                  ? cached_attention(heads.q, heads.k, heads.v, core_, this, ctx)
                                  : core_attention(heads.q, heads.k, heads.v, core_, ctx);
  return proj_.forward(attended, ctx);
}

namespace {

/// Twice the pairs of a query and a key that it sees, the diagonal counted half. With a window w, a
/// document of length l > w has 2 w l - w^2 of them; lengths are taken as equal.
double visible_squares(const AttentionOptions& o, const nn::LayerShape& shape) {
  const auto squares = static_cast<double>(shape.squared_lengths),
             tokens = static_cast<double>(shape.tokens), window = static_cast<double>(o.window);
  if (o.window == 0 || window * tokens >= squares) return squares;
  const double length = squares / tokens;
  return tokens * (2 * window - window * window / length);
}

} // namespace

nn::Cost Attention::cost(const AttentionOptions& o, const nn::LayerShape& shape) {
  const int64_t t = shape.tokens, n = o.heads / shape.tp,
                g = std::max<int64_t>(1, o.kv_heads / shape.tp), d = o.head_size;
  const int64_t qkv = (n + 2 * g) * d;
  nn::Cost cost;
  cost.forward_gemm_flops = 2.0 * static_cast<double>(t) * static_cast<double>(o.hidden) *
                            static_cast<double>(qkv + n * d);
  // Two products over the causal half of the squares.
  cost.forward_attention_flops = 2.0 * visible_squares(o, shape) * static_cast<double>(n * d);
  cost.saved_bytes = shape.element_bytes * t * (o.hidden + qkv + n * d) + shape.acc_bytes * t * n;
  if (o.qk_norm)
    cost.saved_bytes += shape.element_bytes * t * (n + g) * d + shape.acc_bytes * t * (n + g);
  if (shape.tp > 1) cost.tp_all_reduce = {2 * shape.element_bytes * t * o.hidden, 2};
  return cost;
}

} // namespace pentatron::layers
