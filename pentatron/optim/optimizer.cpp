#include "pentatron/optim/optimizer.h"

#include <ATen/ATen.h>

#include <cmath>

#include "pentatron/base/planted_bug.h"
#include "pentatron/kernels/optimizer/buffer.h"
#include "pentatron/nn/memory/counting_allocator.h"
#include "pentatron/nn/ops/kernel_args.h"
#include "pentatron/optim/elementwise.h"

namespace pentatron::optim {

namespace {

constexpr int64_t kGap = 64; // stores begin parameters at multiples of this

at::Tensor flat_like(const at::Tensor& values, at::ScalarType dtype, bool zero) {
  const nn::MemoryScope scope(nn::MemoryCategory::kOptimizer);
  const auto options = values.options().dtype(dtype);
  return zero ? at::zeros(values.sizes(), options) : at::empty(values.sizes(), options);
}

} // namespace

double counted_sum_of_squares(const std::vector<nn::Shard>& shards) {
  std::vector<at::Tensor> counted;
  for (const nn::Shard& shard : shards) {
    if (!shard.trainable()) continue;
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
    if (!shard.trainable()) continue;
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
    if (shard.pieces.empty()) continue;
    if (!shard.trainable()) {
      if (!planted("frozen_parameters_decayed")) continue;
      shard.gradients = at::zeros_like(shard.values);
    }
    State state;
    state.rule = &rule_named(shard.pieces.front().param->rule);
    state.runs = runs_of(shard);
    const at::Tensor& values = shard.values;
    const at::ScalarType acc = nn::acc_dtype(values.scalar_type());
    state.shard.master =
        values.scalar_type() == acc ? values : flat_like(values, acc, /*zero=*/false);
    for (const RuleState& kept : state.rule->state(acc)) {
      state.names.push_back(kept.name);
      state.shard.state.push_back(flat_like(values, kept.dtype, /*zero=*/true));
    }
    state.shard.shard = std::move(shard);
    states_.push_back(std::move(state));
  }
  adopt_values();
}

const Rule& Optimizer::rule_named(const std::string& name) {
  std::unique_ptr<Rule>& rule = rules_[name];
  if (rule == nullptr) rule = make_rule(config_, name);
  return *rule;
}

std::vector<Optimizer::Run> Optimizer::runs_of(const nn::Shard& shard) const {
  std::vector<Run> runs;
  int64_t end = -1; // of the last run, with the gap behind it: zero, and zero it stays
  for (const nn::Piece& piece : shard.pieces) {
    const nn::ShardSpec& spec = piece.param->spec();
    const bool decay = std::ssize(spec.shape) - spec.stacked_dims >= 2;
    const auto found = first_steps_.find(piece.param->name());
    const int64_t first_step = found == first_steps_.end() ? 0 : found->second;
    const double lr_scale = piece.param->lr_scale;
    if (piece.begin == end && runs.back().decay == decay && runs.back().first_step == first_step &&
        runs.back().lr_scale == lr_scale)
      runs.back().range.size = piece.begin + piece.size - runs.back().range.begin;
    else
      runs.push_back({{piece.begin, piece.size}, decay, first_step, lr_scale});
    end = piece.begin + (piece.size + kGap - 1) / kGap * kGap;
  }
  return runs;
}

void Optimizer::set_steps(int64_t steps, FirstSteps first_steps) {
  steps_ = steps;
  first_steps_ = std::move(first_steps);
  for (State& state : states_) state.runs = runs_of(state.shard.shard);
}

void Optimizer::adopt_values() {
  for (const State& state : states_) {
    const at::Tensor& values = state.shard.shard.values;
    if (!state.shard.master.is_same(values)) state.shard.master.copy_(values);
  }
}

void Optimizer::step(double lr, double weight_decay, double grad_scale) {
  ++steps_;
  for (const State& state : states_) {
    for (const Run& run : state.runs)
      state.rule->step(state.shard, run.range,
                       {.lr = lr * run.lr_scale,
                        .weight_decay = run.decay ? weight_decay : 0.0,
                        .grad_scale = grad_scale,
                        .step = steps_ - run.first_step});
  }
}

void Optimizer::for_each_state(const StateFn& fn) {
  for (const State& state : states_) {
    const nn::Shard& shard = state.shard.shard;
    const auto visit = [&](const std::string& what, const at::Tensor& flat) {
      for (const nn::Piece& piece : shard.pieces)
        fn(shard, piece, what, flat.narrow(0, piece.begin, piece.size));
    };
    if (!state.shard.master.is_same(shard.values)) visit("master", state.shard.master);
    for (size_t i = 0; i < state.names.size(); ++i) visit(state.names[i], state.shard.state[i]);
  }
}

double clip_coefficient(double max_norm, double norm) {
  return max_norm > 0 ? std::min(1.0, max_norm / (norm + 1e-6)) : 1.0;
}

} // namespace pentatron::optim
