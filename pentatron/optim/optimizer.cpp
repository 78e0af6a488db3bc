#include "pentatron/optim/optimizer.h"

#include <ATen/ATen.h>

#include <cmath>

#include "pentatron/kernels/optimizer/buffer.h"
#include "pentatron/kernels/optimizer/optimizer.h"
#include "pentatron/nn/memory/counting_allocator.h"
#include "pentatron/nn/ops/kernel_args.h"

namespace pentatron::optim {

namespace {

constexpr int64_t kGap = 64; // stores begin parameters at multiples of this

at::Tensor flat_like(const at::Tensor& values, bool zero) {
  const nn::MemoryScope scope(nn::MemoryCategory::kOptimizer);
  const auto options = values.options().dtype(nn::acc_dtype(values.scalar_type()));
  return zero ? at::zeros(values.sizes(), options) : at::empty(values.sizes(), options);
}

void* at_element(const at::Tensor& flat, int64_t index) {
  return static_cast<char*>(flat.data_ptr()) + index * static_cast<int64_t>(flat.element_size());
}

} // namespace

double counted_sum_of_squares(const std::vector<nn::Shard>& shards) {
  std::vector<at::Tensor> counted;
  for (const nn::Shard& shard : shards) {
    for (const nn::Piece& piece : shard.pieces) {
      const nn::Param& param = *piece.param;
      for (const nn::FlatRange& range :
           nn::ranges_in_shard(piece, nn::counted_ranges(param.spec(), param.where())))
        counted.push_back(shard.gradients.narrow(0, range.begin, range.size));
    }
  }
  if (counted.empty()) return 0;
  const at::Tensor sums = at::zeros({static_cast<int64_t>(counted.size())},
                                    counted.front().options().dtype(at::kDouble));
  for (size_t i = 0; i < counted.size(); ++i) {
    const at::Tensor& part = counted[i];
    const kernels::SumOfSquaresArgs args{
        .dtype = nn::kernel_dtype(part.scalar_type()),
        .n = part.numel(),
        .x = part.data_ptr(),
        .result = static_cast<double*>(at_element(sums, static_cast<int64_t>(i)))};
    kernels::sum_of_squares(
        args, nn::KernelContext(part, part.is_cuda() ? kernels::workspace_bytes(args) : 0));
  }
  return sums.sum().item<double>();
}

std::string first_nonfinite_gradient(const std::vector<nn::Shard>& shards) {
  for (const nn::Shard& shard : shards) {
    for (const nn::Piece& piece : shard.pieces) {
      if (!at::isfinite(shard.gradients.narrow(0, piece.begin, piece.size)).all().item<bool>())
        return piece.param->name();
    }
  }
  return {};
}

Optimizer::Optimizer(const OptimizerConfig& config, std::vector<nn::Shard> shards)
    : config_(config) {
  for (nn::Shard& shard : shards) {
    State state;
    int64_t end = -1; // of the last run, with the gap behind it: zero, and zero it stays
    for (const nn::Piece& piece : shard.pieces) {
      if (!piece.param->trainable) continue;
      const bool decay = piece.param->spec().shape.size() >= 2;
      if (piece.begin == end && state.runs.back().decay == decay) {
        state.runs.back().size = piece.begin + piece.size - state.runs.back().begin;
      } else {
        state.runs.push_back({piece.begin, piece.size, decay});
      }
      end = piece.begin + (piece.size + kGap - 1) / kGap * kGap;
    }
    const at::Tensor& values = shard.values;
    const bool lower = values.scalar_type() != nn::acc_dtype(values.scalar_type());
    state.master = lower ? flat_like(values, false) : values;
    if (config_.optimizer == OptimizerKind::kAdam) {
      state.exp_avg = flat_like(values, true);
      state.exp_avg_sq = flat_like(values, true);
    } else if (config_.sgd_momentum > 0) {
      state.exp_avg = flat_like(values, true);
    }
    state.shard = std::move(shard);
    states_.push_back(std::move(state));
  }
  adopt_values();
}

void Optimizer::adopt_values() {
  for (const State& state : states_) {
    if (!state.master.is_same(state.shard.values)) state.master.copy_(state.shard.values);
  }
}

void Optimizer::step(double lr, double weight_decay, double grad_scale) {
  ++steps_;
  for (const State& state : states_) {
    for (const Run& run : state.runs)
      update(state, run, lr, run.decay ? weight_decay : 0.0, grad_scale);
  }
}

void Optimizer::update(const State& state, const Run& run, double lr, double weight_decay,
                       double grad_scale) const {
  const at::Tensor& values = state.shard.values;
  const bool lower = !state.master.is_same(values);
  const nn::KernelContext context(values);
  const kernels::DType dtype = nn::kernel_dtype(state.master.scalar_type());
  const kernels::DType copy_dtype =
      lower ? nn::kernel_dtype(values.scalar_type()) : kernels::DType::kBFloat16;
  const auto at_run = [&](const at::Tensor& flat) {
    return flat.defined() ? at_element(flat, run.begin) : nullptr;
  };
  if (config_.optimizer == OptimizerKind::kAdam) {
    kernels::adamw({.dtype = dtype,
                    .n = run.size,
                    .param = at_run(state.master),
                    .grad = at_run(state.shard.gradients),
                    .exp_avg = at_run(state.exp_avg),
                    .exp_avg_sq = at_run(state.exp_avg_sq),
                    .param_copy = lower ? at_run(values) : nullptr,
                    .copy_dtype = copy_dtype,
                    .lr = lr,
                    .beta1 = config_.adam_beta1,
                    .beta2 = config_.adam_beta2,
                    .eps = config_.adam_eps,
                    .weight_decay = weight_decay,
                    .grad_scale = grad_scale,
                    .step = steps_},
                   context);
  } else {
    kernels::sgd({.dtype = dtype,
                  .n = run.size,
                  .param = at_run(state.master),
                  .grad = at_run(state.shard.gradients),
                  .momentum_buffer = at_run(state.exp_avg),
                  .param_copy = lower ? at_run(values) : nullptr,
                  .copy_dtype = copy_dtype,
                  .lr = lr,
                  .momentum = config_.sgd_momentum,
                  .nesterov = config_.sgd_nesterov,
                  .weight_decay = weight_decay,
                  .grad_scale = grad_scale},
                 context);
  }
}

void Optimizer::for_each_state(const StateFn& fn) {
  for (const State& state : states_) {
    const auto visit = [&](const char* what, const at::Tensor& flat) {
      if (!flat.defined()) return;
      for (const nn::Piece& piece : state.shard.pieces)
        fn(*piece.param, piece.param_begin, what, flat.narrow(0, piece.begin, piece.size));
    };
    if (!state.master.is_same(state.shard.values)) visit("master", state.master);
    visit(config_.optimizer == OptimizerKind::kAdam ? "exp_avg" : "momentum_buffer", state.exp_avg);
    visit("exp_avg_sq", state.exp_avg_sq);
  }
}

double clip_coefficient(double max_norm, double norm) {
  return max_norm > 0 ? std::min(1.0, max_norm / (norm + 1e-6)) : 1.0;
}

} // namespace pentatron::optim
