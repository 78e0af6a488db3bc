#include "pentatron/parallel/tensor/linear.h"

#include <ATen/ATen.h>

#include "pentatron/base/planted_bug.h"
#include "pentatron/comm/collectives.h"
#include "pentatron/nn/ops/matmul.h"
#include "pentatron/nn/ops/ops.h"
#include "pentatron/nn/ops/wgrad.h"
#include "pentatron/nn/record.h"
#include "pentatron/parallel/tensor/linear_adapter.h"

namespace pentatron::parallel {

using nn::Placement;

namespace {

nn::Param* if_trained(nn::Param* param) {
  return param != nullptr && param->trainable ? param : nullptr;
}

struct WantedGradients {
  nn::Param *weight, *bias; ///< null: not trained, or there is none
  bool input;
};

/// dx of a column-parallel layer (undefined if it is not wanted), and its weight gradient beside
/// the collectives.
at::Tensor column_backward(const at::Tensor& dy, const at::Tensor& input, const nn::Param& weight,
                           const WantedGradients& wanted, nn::WgradQueue& queue,
                           const TensorParallel& tp) {
  bool any = wanted.weight != nullptr || wanted.bias != nullptr;
  if (wanted.weight == nullptr && planted("bias_of_a_frozen_weight_forgotten")) any = false;
  comm::Work gathering;
  std::unique_ptr<nn::WgradTask> task;
  if (tp.sequence && queue.deferred()) { // gathers when it runs: until then fewer tokens are kept
    task = std::make_unique<nn::GatheredWgrad>(dy, input, wanted.weight, wanted.bias, tp.group);
  } else {
    at::Tensor x = input;
    if (tp.sequence && any) {
      x = at::empty({input.size(0) * tp.size(), input.size(1)}, input.options());
      gathering = comm::all_gather_into(x, input, 0, tp.group);
    }
    task = std::make_unique<nn::LinearWgrad>(dy, x, wanted.weight, wanted.bias);
  }
  at::Tensor dx, sum;
  comm::Work summing;
  if (wanted.input) {
    sum = dx = nn::matmul_nn(dy, weight);
    if (tp.sequence) {
      sum = at::empty_like(input);
      summing = comm::reduce_scatter_into(sum, dx, tp.group);
    } else if (!planted("column_input_gradient_not_summed") &&
               !(wanted.weight == nullptr &&
                 planted("input_gradient_of_a_frozen_weight_not_summed"))) {
      summing = comm::all_reduce_start_(dx, comm::ReduceOp::kSum, tp.group);
    }
  }
  gathering.wait();
  if (any) queue.push(std::move(task));
  summing.wait();
  return sum;
}

} // namespace

std::map<std::string, Placement> token_wise(const TensorParallel& tp) {
  if (!tp.sequence || planted("token_wise_gradient_not_summed")) return {};
  return {{"tp", Placement::partial()}};
}

ColumnParallelLinear::ColumnParallelLinear(const nn::Scope& scope, const Options& options,
                                           TensorParallel tp)
    : tp_(std::move(tp)) {
  int64_t out = 0;
  for (const nn::FusedPart& part : options.parts) out += part.pieces * part.piece_size;
  const std::map<std::string, Placement> placements = {{"tp", Placement::shard(0)}};
  weight_ = &scope.param(
      "weight",
      {.name = {}, .shape = {out, options.in}, .parts = options.parts, .placements = placements},
      nn::Init::normal(options.init_std));
  weight_->linear = true;
  weight_->multiplies = nn::ProductRows::kTokens;
  if (options.bias) {
    bias_ = &scope.param(
        "bias", {.name = {}, .shape = {out}, .parts = options.parts, .placements = placements},
        nn::Init::constant(0));
  }
  adapter_ = LinearAdapter::make(scope, *weight_, LinearAdapter::Split::kRows, tp_);
  variants_ = LinearAdapter::make_variants(scope, *weight_, LinearAdapter::Split::kRows, tp_);
}

at::Tensor ColumnParallelLinear::forward(const at::Tensor& x, const nn::ForwardContext& ctx) const {
  at::Tensor y = without_variants(x, ctx);
  LinearAdapter::add_variants(variants_, y, x, bias_, 0, ctx);
  return y;
}

at::Tensor ColumnParallelLinear::weight_of(int64_t variant) const {
  const LinearAdapter* const adapter = variant == 0 || variants_.empty()
                                           ? nullptr
                                           : variants_[static_cast<size_t>(variant - 1)].get();
  if (adapter != nullptr) return adapter->merged(*weight_);
  return adapted() ? adapter_->trained(*weight_) : weight_->dense_value();
}

at::Tensor ColumnParallelLinear::without_variants(const at::Tensor& x,
                                                  const nn::ForwardContext& ctx) const {
  if (adapter_ != nullptr) return adapter_->forward(x, *weight_, bias_, ctx);
  if (tp_.size() == 1) return nn::linear(x, *weight_, bias_, ctx);
  ctx.use(weight_);
  ctx.use(bias_);
  at::Tensor y;
  {
    const nn::NoAutograd guard;
    const at::Tensor input = x.detach();
    const at::Tensor bias = bias_ != nullptr ? bias_->value() : at::Tensor();
    const int64_t tokens = input.size(0) * (tp_.sequence ? tp_.size() : 1);
    y = at::empty({tokens, weight_->shape()[0]}, input.options());
    gather_rows(input, tp_, [&](int64_t begin, const at::Tensor& rows) {
      nn::matmul_nt_into(y.narrow(0, begin, rows.size(0)), rows, *weight_, bias);
    });
  }
  nn::record("column_parallel_linear", {x}, {y}, {x},
             [weight = weight_, bias = bias_, queue = ctx.wgrad, tp = tp_,
              wants_dx = x.requires_grad()](auto&& grads, nn::Saved& saved) {
               const nn::NoAutograd guard;
               return std::vector<at::Tensor>{
                   column_backward(grads[0].contiguous(), saved.take(0), *weight,
                                   {if_trained(weight), if_trained(bias), wants_dx}, *queue, tp)};
             });
  return y;
}

RowParallelLinear::RowParallelLinear(const nn::Scope& scope, const Options& options,
                                     TensorParallel tp)
    : tp_(std::move(tp)) {
  weight_ = &scope.param(
      "weight",
      {.name = {}, .shape = {options.out, options.in}, .placements = {{"tp", Placement::shard(1)}}},
      nn::Init::normal(options.init_std));
  weight_->linear = true;
  weight_->multiplies = nn::ProductRows::kTokens;
  if (options.bias) {
    bias_ =
        &scope.param("bias", {.name = {}, .shape = {options.out}, .placements = token_wise(tp_)},
                     nn::Init::constant(0));
  }
  adapter_ = LinearAdapter::make(scope, *weight_, LinearAdapter::Split::kColumns, tp_);
  variants_ = LinearAdapter::make_variants(scope, *weight_, LinearAdapter::Split::kColumns, tp_);
}

at::Tensor RowParallelLinear::forward(const at::Tensor& x, const nn::ForwardContext& ctx) const {
  if (adapter_ != nullptr) return adapter_->forward(x, *weight_, bias_, ctx);
  if (tp_.size() == 1) {
    at::Tensor y = nn::linear(x, *weight_, bias_, ctx);
    LinearAdapter::add_variants(variants_, y, x, bias_, 0, ctx);
    return y;
  }
  ctx.use(weight_);
  ctx.use(bias_);
  at::Tensor y;
  {
    const nn::NoAutograd guard;
    const at::Tensor input = x.detach();
    y = reduce_rows(input.size(0), weight_->shape()[0], input.options(), tp_,
                    [&](int64_t begin, const at::Tensor& rows) {
                      const at::Tensor own = input.narrow(0, begin, rows.size(0));
                      nn::matmul_nt_into(rows, own, *weight_);
                      LinearAdapter::add_variants(variants_, rows, own, nullptr, begin, ctx);
                    });
    if (bias_ != nullptr)
      y.add_(bias_->value(), planted("row_bias_added_by_every_rank") ? tp_.size() : 1);
  }
  nn::record("row_parallel_linear", {x}, {y}, {x},
             [weight = weight_, bias = bias_, queue = ctx.wgrad, tp = tp_](auto&& grads,
                                                                           nn::Saved& saved) {
               const nn::NoAutograd guard;
               const at::Tensor input = saved.take(0);
               const at::Tensor dy = grads[0].contiguous();
               if (nn::Param* const trained = if_trained(bias)) {
                 nn::add_column_sums(trained->main_grad(), dy);
                 trained->accumulated();
               }
               const at::Tensor dx = at::empty_like(input);
               at::Tensor dy_all;
               gather_rows(dy, tp, [&](int64_t begin, const at::Tensor& rows) {
                 nn::matmul_nn_into(dx.narrow(0, begin, rows.size(0)), rows, *weight);
                 if (rows.size(0) == input.size(0)) {
                   dy_all = rows;
                   return;
                 }
                 if (!dy_all.defined())
                   dy_all = at::empty({input.size(0), dy.size(1)}, dy.options());
                 dy_all.narrow(0, begin, rows.size(0)).copy_(rows);
               });
               if (nn::Param* const trained = if_trained(weight))
                 queue->push(std::make_unique<nn::LinearWgrad>(dy_all, input, trained, nullptr));
               return std::vector<at::Tensor>{dx};
             });
  return y;
}

} // namespace pentatron::parallel
