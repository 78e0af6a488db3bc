#include "pentatron/optim/optimizer.h"

#include <ATen/ATen.h>

#include <cmath>

#include "pentatron/comm/collectives.h"
#include "pentatron/kernels/optimizer/buffer.h"
#include "pentatron/kernels/optimizer/optimizer.h"
#include "pentatron/nn/memory/counting_allocator.h"
#include "pentatron/nn/ops/kernel_args.h"

namespace pentatron::optim {

namespace {

at::Tensor flat_like(const at::Tensor& values, bool zero) {
  const nn::MemoryScope scope(nn::MemoryCategory::kOptimizer);
  const auto options = values.options().dtype(nn::acc_dtype(values.scalar_type()));
  return zero ? at::zeros(values.sizes(), options) : at::empty(values.sizes(), options);
}

void* at_element(const at::Tensor& flat, int64_t index) {
  return static_cast<char*>(flat.data_ptr()) + index * static_cast<int64_t>(flat.element_size());
}

} // namespace

double global_grad_norm(const nn::ResidentStore& store, const comm::Group& model) {
  const at::Tensor& gradients = store.gradients();
  const auto& ranges = store.ranges();
  std::vector<nn::FlatRange> counted;
  for (const nn::ResidentStore::Range& range : ranges) {
    for (nn::FlatRange part : nn::counted_ranges(range.param->spec(), range.param->where())) {
      part.begin += range.begin;
      counted.push_back(part);
    }
  }
  const at::Tensor sums =
      at::zeros({static_cast<int64_t>(counted.size())}, gradients.options().dtype(at::kDouble));
  for (size_t i = 0; i < counted.size(); ++i) {
    const kernels::SumOfSquaresArgs args{
        .dtype = nn::kernel_dtype(gradients.scalar_type()),
        .n = counted[i].size,
        .x = at_element(gradients, counted[i].begin),
        .result = static_cast<double*>(at_element(sums, static_cast<int64_t>(i)))};
    kernels::sum_of_squares(
        args,
        nn::KernelContext(gradients, gradients.is_cuda() ? kernels::workspace_bytes(args) : 0));
  }
  return std::sqrt(comm::all_reduce(sums.sum(), comm::ReduceOp::kSum, model).item<double>());
}

std::string first_nonfinite_gradient(const nn::ResidentStore& store) {
  for (const nn::ResidentStore::Range& range : store.ranges()) {
    if (!at::isfinite(range.param->main_grad()).all().item<bool>()) return range.param->name();
  }
  return {};
}

Optimizer::Optimizer(const OptimizerConfig& config, nn::ResidentStore& store)
    : config_(config), store_(&store) {
  for (const nn::ResidentStore::Range& range : store.ranges()) {
    const bool decay = range.param->spec().shape.size() >= 2;
    const int64_t end =
        range.begin + (range.size + 63) / 64 * 64; // the gap behind is zero and stays zero
    if (!runs_.empty() && runs_.back().decay == decay &&
        runs_.back().begin + runs_.back().size == range.begin) {
      runs_.back().size = end - runs_.back().begin;
    } else {
      runs_.push_back({range.begin, end - range.begin, decay});
    }
  }
  const at::Tensor& values = store.values();
  const bool lower = values.scalar_type() != nn::acc_dtype(values.scalar_type());
  master_ = lower ? flat_like(values, false) : values;
  if (config_.optimizer == OptimizerKind::kAdam) {
    exp_avg_ = flat_like(values, true);
    exp_avg_sq_ = flat_like(values, true);
  } else if (config_.sgd_momentum > 0) {
    exp_avg_ = flat_like(values, true);
  }
  adopt_values();
}

void Optimizer::adopt_values() {
  if (!master_.is_same(store_->values())) master_.copy_(store_->values());
}

void Optimizer::step(double lr, double weight_decay, double grad_scale) {
  ++steps_;
  const at::Tensor& values = store_->values();
  const bool lower = !master_.is_same(values);
  const nn::KernelContext context(values);
  const kernels::DType dtype = nn::kernel_dtype(master_.scalar_type());
  const kernels::DType copy_dtype =
      lower ? nn::kernel_dtype(values.scalar_type()) : kernels::DType::kBFloat16;
  for (const Run& run : runs_) {
    void* const copy = lower ? at_element(values, run.begin) : nullptr;
    const double decay = run.decay ? weight_decay : 0.0;
    if (config_.optimizer == OptimizerKind::kAdam) {
      kernels::adamw({.dtype = dtype,
                      .n = run.size,
                      .param = at_element(master_, run.begin),
                      .grad = at_element(store_->gradients(), run.begin),
                      .exp_avg = at_element(exp_avg_, run.begin),
                      .exp_avg_sq = at_element(exp_avg_sq_, run.begin),
                      .param_copy = copy,
                      .copy_dtype = copy_dtype,
                      .lr = lr,
                      .beta1 = config_.adam_beta1,
                      .beta2 = config_.adam_beta2,
                      .eps = config_.adam_eps,
                      .weight_decay = decay,
                      .grad_scale = grad_scale,
                      .step = steps_},
                     context);
    } else {
      kernels::sgd(
          {.dtype = dtype,
           .n = run.size,
           .param = at_element(master_, run.begin),
           .grad = at_element(store_->gradients(), run.begin),
           .momentum_buffer = exp_avg_.defined() ? at_element(exp_avg_, run.begin) : nullptr,
           .param_copy = copy,
           .copy_dtype = copy_dtype,
           .lr = lr,
           .momentum = config_.sgd_momentum,
           .nesterov = config_.sgd_nesterov,
           .weight_decay = decay,
           .grad_scale = grad_scale},
          context);
    }
  }
}

void Optimizer::for_each_state(
    const std::function<void(const nn::Param&, const std::string&, const at::Tensor&)>& fn) {
  const auto visit = [&](const char* what, const at::Tensor& flat) {
    if (!flat.defined()) return;
    for (const nn::ResidentStore::Range& range : store_->ranges()) {
      fn(*range.param, what, flat.narrow(0, range.begin, range.size).view(range.param->shape()));
    }
  };
  if (!master_.is_same(store_->values())) visit("master", master_);
  visit(config_.optimizer == OptimizerKind::kAdam ? "exp_avg" : "momentum_buffer", exp_avg_);
  visit("exp_avg_sq", exp_avg_sq_);
}

double clip_coefficient(double max_norm, double norm) {
  return max_norm > 0 ? std::min(1.0, max_norm / (norm + 1e-6)) : 1.0;
}

} // namespace pentatron::optim
