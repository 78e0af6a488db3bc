// Shapes: T tokens, t tp size, i in, o out, r sum of the ranks of all parts.
#include "pentatron/parallel/tensor/linear_adapter.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "pentatron/base/error.h"
#include "pentatron/base/planted_bug.h"
#include "pentatron/comm/collectives.h"
#include "pentatron/nn/ops/matmul.h"
#include "pentatron/nn/ops/ops.h"
#include "pentatron/nn/record.h"
#include "pentatron/parallel/tensor/linear.h"

namespace pentatron::parallel {

using nn::Placement;

namespace {

bool is_whole(LinearAdapter::Split split) {
  return split == LinearAdapter::Split::kWholeOfTokens ||
         split == LinearAdapter::Split::kWholeOfSamples;
}

/// Of the layer's input.
nn::Rows rows_of(LinearAdapter::Split split) {
  switch (split) {
  case LinearAdapter::Split::kColumns:
    return nn::Rows::kAllTokens;
  case LinearAdapter::Split::kWholeOfSamples:
    return nn::Rows::kSamples;
  default:
    return nn::Rows::kOuter;
  }
}

} // namespace

std::shared_ptr<const LinearAdapter> LinearAdapter::make(const nn::Scope& scope, nn::Param& weight,
                                                         Split split, const TensorParallel& tp) {
  weight.adaptable |= static_cast<uint8_t>(nn::AdaptedUse::kLinear);
  if (scope.adapters() == nullptr) return nullptr;
  if (!scope.adapters()->weights.contains(weight.name())) return nullptr;
  return std::shared_ptr<const LinearAdapter>(
      new LinearAdapter(scope, weight, *scope.adapters(), split, tp));
}

std::vector<std::shared_ptr<const LinearAdapter>>
LinearAdapter::make_variants(const nn::Scope& scope, nn::Param& weight, Split split,
                             const TensorParallel& tp) {
  std::vector<std::shared_ptr<const LinearAdapter>> variants;
  if (scope.variants() == nullptr) return variants;
  for (const nn::AdapterPlan& plan : *scope.variants()) {
    const std::string suffix = nn::variant_suffix(variants.size() + 1);
    variants.emplace_back(plan.weights.contains(weight.name())
                              ? new LinearAdapter(scope, weight, plan, split, tp, suffix)
                              : nullptr);
  }
  return variants;
}

void LinearAdapter::add_variants(const std::vector<std::shared_ptr<const LinearAdapter>>& variants,
                                 const at::Tensor& y, const at::Tensor& x, const nn::Param* bias,
                                 int64_t begin, const nn::ForwardContext& ctx) {
  if (variants.empty() || ctx.variant_rows == nullptr) return;
  const int64_t end = begin + y.size(0);
  for (const nn::VariantRows& rows : *ctx.variant_rows) {
    const LinearAdapter* const adapter = variants[static_cast<size_t>(rows.variant - 1)].get();
    const int64_t first = std::max(begin, rows.begin), last = std::min(end, rows.begin + rows.size);
    if (adapter == nullptr || first >= last) continue;
    PT_DCHECK(!adapter->tp_.sequence);
    const at::Tensor own = x.narrow(0, first - begin, last - first),
                     out = y.narrow(0, first - begin, last - first);
    adapter->up(out, adapter->down(own, {}, {}));
    if (adapter->dora_) adapter->scale_rows(out, bias);
  }
}

/// Of a variant: y[:, P] *= its magnitudes, without the bias that y has.
void LinearAdapter::scale_rows(const at::Tensor& y, const nn::Param* bias) const {
  for (const Part& part : parts_) {
    const at::Tensor y_part = y.narrow(1, part.first_row, part.rows);
    at::Tensor own_bias;
    if (bias != nullptr) own_bias = bias->value().narrow(0, part.first_row, part.rows);
    if (own_bias.defined()) y_part.sub_(own_bias);
    y_part.mul_(part.magnitude->value());
    if (own_bias.defined()) y_part.add_(own_bias);
  }
}

at::Tensor LinearAdapter::merged(const nn::Param& weight) const {
  const at::Tensor sum = weight.dense_value().clone();
  for (const Part& part : parts_) {
    const at::Tensor rows = sum.narrow(0, part.first_row, part.rows);
    rows.addmm_(part.b->value(), a_->value().narrow(0, part.first, part.rank), 1, part.scale);
    if (dora_) rows.mul_(part.magnitude->value().unsqueeze(1));
  }
  return sum;
}

at::Tensor LinearAdapter::trained(const nn::Param& weight) const {
  const at::Tensor sum = merged(weight);
  if (dora_)
    for (const Part& part : parts_) {
      const at::Tensor norms = row_norms(part, weight).to(sum.scalar_type());
      sum.narrow(0, part.first_row, part.rows).div_(norms.unsqueeze(1));
    }
  return sum;
}

LinearAdapter::LinearAdapter(const nn::Scope& scope, const nn::Param& weight,
                             const nn::AdapterPlan& plan, Split split, TensorParallel tp,
                             const std::string& name_end)
    : tp_(is_whole(split) ? TensorParallel() : std::move(tp)), split_(split),
      weight_name_(weight.name()), dropout_(plan.dropout), dora_(plan.dora) {
  const std::vector<nn::AdaptedPart>& parts = plan.weights.find(weight.name())->second;
  const bool by_rows = split == Split::kRows;
  const nn::ShardSpec& whole = weight.spec();
  const auto add = [&](const std::string& what, nn::ShardSpec spec,
                       std::map<std::string, Placement> placements, nn::Init init) {
    spec.placements = is_whole(split) ? whole.placements : std::move(placements);
    nn::Param& param = scope.param(what + name_end, std::move(spec), init);
    param.adapter = true;
    return &param;
  };
  int64_t ranks = 0;
  for (const nn::AdaptedPart& part : parts) ranks += part.rank;
  // Kaiming's uniform numbers with a = sqrt(5), as of a linear layer's own weight.
  const double bound = 1 / std::sqrt(static_cast<double>(whole.shape[1]));
  const Placement addends = planted("adapter_gradient_not_summed_over_tensor_ranks")
                                ? Placement::replicate()
                                : Placement::partial();
  a_ = add("lora_A", {.name = {}, .shape = {ranks, whole.shape[1]}},
           {{"tp", by_rows ? addends : Placement::shard(1)}}, nn::Init::uniform(bound));
  int64_t first = 0;
  for (const nn::AdaptedPart& of : parts) {
    Part part{.first = first, .rank = of.rank, .scale = of.scale};
    first += of.rank;
    const std::string suffix = of.name.empty() ? "" : "." + of.name;
    part.b = add("lora_B" + suffix, nn::spec_of_parts(whole, of.first, of.count, of.rank),
                 {{"tp", by_rows ? Placement::shard(0) : addends}}, nn::Init::constant(0));
    part.b->lr_scale = plan.b_lr_scale;
    if (dora_) {
      part.magnitude = add("lora_magnitude" + suffix, nn::spec_of_parts(whole, of.first, of.count),
                           by_rows ? std::map<std::string, Placement>{{"tp", Placement::shard(0)}}
                                   : token_wise(tp_),
                           nn::Init::constant(1));
      part.magnitude->lr_scale = plan.b_lr_scale; // as peft's LoRA+ for all that is 1-D
    }
    part.rows = part.b->shape()[0];
    part.first_row = nn::local_rows_before(whole, weight.where(), of.first);
    parts_.push_back(part);
  }
}

at::Tensor LinearAdapter::Dropout::apply(const at::Tensor& x, const at::Tensor& rows) const {
  if (p == 0) return x;
  return nn::dropout_values(x, {.p = p, .site = 0, .feature_offset = feature_offset}, key, rows);
}

LinearAdapter::Dropout LinearAdapter::dropout_of(const nn::ForwardContext& ctx) const {
  if (!ctx.training || dropout_ == 0) return {};
  const bool offset = split_ == Split::kColumns && !planted("adapter_dropout_by_local_feature");
  return {.p = dropout_,
          .key = Stream(ctx.seed, "adapter_dropout/" + weight_name_).key(),
          .feature_offset = offset ? tp_.rank() * a_->shape()[1] : 0};
}

/// s dropout(x) A^T [rows of x, r]: of the rank's columns, if the weight is split by columns.
at::Tensor LinearAdapter::down(const at::Tensor& x, const Dropout& dropout,
                               const at::Tensor& rows) const {
  const at::Tensor z = nn::matmul_nt(dropout.apply(x, rows), a_->value());
  for (const Part& part : parts_) z.narrow(1, part.first, part.rank).mul_(part.scale);
  return z;
}

/// y[:, P] += z_P B_P^T.
void LinearAdapter::up(const at::Tensor& y, const at::Tensor& z) const {
  for (const Part& part : parts_)
    y.narrow(1, part.first_row, part.rows)
        .addmm_(z.narrow(1, part.first, part.rank), part.b->value().t());
}

/// Adds the gradients of all B and returns that of x A^T.
at::Tensor LinearAdapter::back_up(const at::Tensor& dy, const at::Tensor& z) const {
  const at::Tensor dz = at::empty_like(z);
  const bool scaled = tp_.size() == 1 || !planted("adapter_scale_missing_in_backward");
  for (const Part& part : parts_) {
    const at::Tensor dy_part = dy.narrow(1, part.first_row, part.rows);
    at::Tensor dz_part = dz.narrow(1, part.first, part.rank);
    at::mm_out(dz_part, dy_part, part.b->value());
    dz_part.mul_(scaled ? part.scale : 1.0);
    if (part.b->trainable) {
      nn::add_matmul_tn(*part.b, dy_part, z.narrow(1, part.first, part.rank));
      part.b->accumulated();
    }
  }
  return dz;
}

/// Adds the gradient of A, and what x has from the adapters to dx (if that is wanted).
void LinearAdapter::back_down(const at::Tensor& dz, const at::Tensor& x, const at::Tensor& dx,
                              const Dropout& dropout, const at::Tensor& rows) const {
  if (a_->trainable) {
    nn::add_matmul_tn(*a_, dz, dropout.apply(x, rows));
    a_->accumulated();
  }
  if (!dx.defined()) return;
  if (dropout.p == 0)
    dx.addmm_(dz, a_->value());
  else
    dx.add_(dropout.apply(nn::matmul_nn(dz, a_->value()), rows));
}

at::Tensor squared_row_norms(const nn::Param& weight, int64_t first, const at::Tensor& b,
                             const at::Tensor& a, double scale) {
  const at::Tensor squares = at::empty({b.size(0)}, a.options());
  constexpr int64_t kRows = 1024; // at a time, so that the sum never exists as a whole
  for (int64_t begin = 0; begin < b.size(0); begin += kRows) {
    const int64_t n = std::min(kRows, b.size(0) - begin);
    const at::Tensor sum = at::addmm(weight.dense_rows(first + begin, n).to(a.scalar_type()),
                                     b.narrow(0, begin, n).to(a.scalar_type()), a, 1, scale);
    squares.narrow(0, begin, n).copy_(sum.square().sum(1));
  }
  return squares;
}

at::Tensor norms_to_divide_by(const at::Tensor& squares) {
  const at::Tensor norms = squares.sqrt();
  return norms.masked_fill_(norms == 0, 1);
}

/// Of W_P + s B_P A_P, in the accumulate type [rows of the part].
at::Tensor LinearAdapter::row_norms(const Part& part, const nn::Param& weight) const {
  const at::ScalarType acc = nn::acc_dtype(weight.dtype());
  const at::Tensor a = a_->value().narrow(0, part.first, part.rank).to(acc);
  const at::Tensor squares =
      squared_row_norms(weight, part.first_row, part.b->value(), a, part.scale);
  if (split_ == Split::kColumns) comm::all_reduce_(squares, comm::ReduceOp::kSum, tp_.group);
  return norms_to_divide_by(squares);
}

at::Tensor LinearAdapter::forward(const at::Tensor& x, const nn::Param& weight,
                                  const nn::Param* bias, const nn::ForwardContext& ctx) const {
  PT_DCHECK(!ctx.differentiated || !weight.trainable);
  ctx.use(a_);
  for (const Part& part : parts_) {
    ctx.use(part.b);
    ctx.use(part.magnitude);
  }
  const Dropout dropout = dropout_of(ctx);
  std::vector<at::Tensor> saved = {x, at::Tensor(), at::Tensor()};
  at::Tensor y;
  {
    const nn::NoAutograd guard;
    const at::Tensor input = x.detach();
    if (dropout.p > 0) saved[2] = nn::dropout_rows(rows_of(split_), *ctx.layout);
    at::Tensor z = down(input, dropout, saved[2]);
    if (split_ != Split::kColumns) {
      const int64_t tokens = input.size(0) * (tp_.sequence ? tp_.size() : 1);
      y = at::empty({tokens, weight.shape()[0]}, input.options());
      const bool early = bias != nullptr && !dora_;
      gather_rows(input, tp_, [&](int64_t begin, const at::Tensor& rows) {
        nn::matmul_nt_into(y.narrow(0, begin, rows.size(0)), rows, weight,
                           early ? bias->value() : at::Tensor());
      });
      if (tp_.sequence) z = comm::all_gather(z, 0, tp_.group);
      up(y, z);
    } else {
      y = reduce_rows(input.size(0), weight.shape()[0], input.options(), tp_,
                      [&](int64_t begin, const at::Tensor& rows) {
                        const int64_t n = rows.size(0);
                        nn::matmul_nt_into(rows, input.narrow(0, begin, n), weight);
                        up(rows, z.narrow(0, begin, n));
                      });
    }
    saved[1] = z;
    if (dora_) {
      for (const Part& part : parts_) {
        const at::Tensor y_part = y.narrow(1, part.first_row, part.rows);
        const at::Tensor norms = row_norms(part, weight);
        saved.push_back(y_part.clone());
        saved.push_back(norms);
        y_part.mul_((part.magnitude->value().to(norms.scalar_type()) / norms).to(y.scalar_type()));
      }
    }
    if (bias != nullptr && (dora_ || split_ == Split::kColumns)) y.add_(bias->value());
  }
  nn::record("adapted_linear", {x}, {y}, std::move(saved),
             [this, &weight, dropout, wants_dx = x.requires_grad()](auto&& grads, nn::Saved& kept) {
               const nn::NoAutograd guard;
               const at::Tensor dy = grads[0].contiguous();
               return std::vector<at::Tensor>{
                   split_ == Split::kColumns ? columns_backward(dy, kept, weight, dropout)
                                             : rows_backward(dy, kept, weight, dropout, wants_dx)};
             });
  return y;
}

/// The gradients of the magnitudes, and that of y before it was scaled.
at::Tensor LinearAdapter::scale_back(const at::Tensor& dy, nn::Saved& saved, size_t first) const {
  if (!dora_) return dy;
  const at::Tensor unscaled = dy.clone();
  for (const Part& part : parts_) {
    const at::Tensor before = saved.take(first), norms = saved.take(first + 1);
    first += 2;
    const at::Tensor dy_part = unscaled.narrow(1, part.first_row, part.rows);
    if (part.magnitude->trainable) {
      const at::ScalarType acc = norms.scalar_type();
      part.magnitude->main_grad().add_((dy_part.to(acc) * before.to(acc)).sum(0).div_(norms));
      part.magnitude->accumulated();
    }
    dy_part.mul_((part.magnitude->value().to(norms.scalar_type()) / norms).to(dy.scalar_type()));
  }
  return unscaled;
}

at::Tensor LinearAdapter::rows_backward(const at::Tensor& dy, nn::Saved& saved,
                                        const nn::Param& weight, const Dropout& dropout,
                                        bool wants_dx) const {
  const at::Tensor x = saved.take(0), z = saved.take(1), rows = saved.take(2);
  const at::Tensor dy_to = scale_back(dy, saved, 3);
  const at::Tensor dz = back_up(dy_to, z);
  at::Tensor dx;
  if (wants_dx) dx = nn::matmul_nn(dy_to, weight);
  if (tp_.sequence) { // x need not be gathered for the gradient of A: dz is summed and cut instead
    at::Tensor own;
    const at::Tensor dz_own = at::empty({x.size(0), dz.size(1)}, dz.options());
    comm::Work summing;
    if (wants_dx) {
      own = at::empty_like(x);
      summing = comm::reduce_scatter_into(own, dx, tp_.group);
    }
    comm::reduce_scatter_into(dz_own, dz, tp_.group).wait();
    summing.wait();
    back_down(dz_own, x, own, dropout, rows);
    return own;
  }
  back_down(dz, x, dx, dropout, rows);
  if (wants_dx) comm::all_reduce_(dx, comm::ReduceOp::kSum, tp_.group);
  return dx;
}

at::Tensor LinearAdapter::columns_backward(const at::Tensor& dy, nn::Saved& saved,
                                           const nn::Param& weight, const Dropout& dropout) const {
  const at::Tensor x = saved.take(0), z = saved.take(1), rows = saved.take(2);
  const at::Tensor dx = at::empty_like(x);
  const at::Tensor dy_own = scale_back(dy, saved, 3);
  at::Tensor dy_all;
  gather_rows(dy_own, tp_, [&](int64_t begin, const at::Tensor& part) {
    nn::matmul_nn_into(dx.narrow(0, begin, part.size(0)), part, weight);
    if (part.size(0) == x.size(0)) {
      dy_all = part;
      return;
    }
    if (!dy_all.defined()) dy_all = at::empty({x.size(0), dy.size(1)}, dy.options());
    dy_all.narrow(0, begin, part.size(0)).copy_(part);
  });
  back_down(back_up(dy_all, z), x, dx, dropout, rows);
  return dx;
}

} // namespace pentatron::parallel
