#include "pentatron/optim/optimizer.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "pentatron/base/planted_bug.h"
#include "pentatron/kernels/optimizer/buffer.h"
#include "pentatron/nn/memory/counting_allocator.h"
#include "pentatron/nn/ops/kernel_args.h"
#include "pentatron/optim/elementwise.h"
#include "pentatron/optim/remainder.h"

namespace pentatron::optim {

namespace {

constexpr int64_t kGap = 64; // stores begin parameters at multiples of this
/// Where a rule works on whole parameters: so many elements at once, which bounds what an update
/// needs beside the state; tensor ranks share the matrices among them.
constexpr int64_t kBatch = int64_t{1} << 24;
/// Elements whose narrow state is widened at once.
constexpr int64_t kWidened = int64_t{1} << 18;

at::Tensor flat_like(const at::Tensor& values, at::ScalarType dtype, bool zero) {
  const nn::MemoryScope scope(nn::MemoryCategory::kOptimizer);
  const auto options = values.options().dtype(dtype);
  return zero ? at::zeros(values.sizes(), options) : at::empty(values.sizes(), options);
}

} // namespace

namespace {

double sum_of_squares(const std::vector<at::Tensor>& parts) {
  if (parts.empty()) return 0;
  const at::Tensor sums =
      at::zeros({std::ssize(parts)}, parts.front().options().dtype(at::kDouble));
  for (size_t i = 0; i < parts.size(); ++i) {
    const at::Tensor& part = parts[i];
    const kernels::SumOfSquaresArgs args{.dtype = nn::kernel_dtype(part.scalar_type()),
                                         .n = part.numel(),
                                         .x = part.data_ptr(),
                                         .result = sums.data_ptr<double>() + i};
    kernels::sum_of_squares(
        args, nn::KernelContext(part, part.is_cuda() ? kernels::workspace_bytes(args) : 0));
  }
  return sums.sum().item<double>();
}

/// The ranges of a piece that its rank counts, in order.
std::vector<nn::FlatRange> counted_of(const nn::Piece& piece) {
  std::vector<nn::FlatRange> ranges =
      nn::ranges_in_shard(piece, nn::counted_ranges(piece.param->spec(), piece.param->where()));
  std::ranges::sort(ranges, {}, &nn::FlatRange::begin);
  return ranges;
}

} // namespace

double counted_sum_of_squares(const std::vector<nn::Shard>& shards) {
  std::vector<at::Tensor> counted;
  for (const nn::Shard& shard : shards) {
    if (!shard.trainable()) continue;
    for (const nn::Piece& piece : shard.pieces)
      for (const nn::FlatRange& range : counted_of(piece))
        counted.push_back(shard.gradients.narrow(0, range.begin, range.size));
  }
  return sum_of_squares(counted);
}

bool has_nonfinite_copies(const std::vector<nn::Shard>& shards, bool all) {
  std::vector<at::Tensor> copies;
  for (const nn::Shard& shard : shards) {
    if (!shard.trainable()) continue;
    for (const nn::Piece& piece : shard.pieces) {
      int64_t begin = piece.begin;
      const auto add_up_to = [&](int64_t end) {
        if (end > begin) copies.push_back(shard.gradients.narrow(0, begin, end - begin));
      };
      if (!all) {
        for (const nn::FlatRange& range : counted_of(piece)) {
          add_up_to(range.begin);
          begin = range.begin + range.size;
        }
      }
      add_up_to(piece.begin + piece.size);
    }
  }
  return !std::isfinite(sum_of_squares(copies));
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
    state.rule = &rule_of(*shard.pieces.front().param);
    const at::Tensor& values = shard.values;
    const at::ScalarType acc = nn::acc_dtype(values.scalar_type());
    if (keeps_remainder(config_, values.scalar_type()))
      state.remainder = flat_like(values, at::kShort, /*zero=*/true);
    else
      state.shard.master =
          values.scalar_type() == acc ? values : flat_like(values, acc, /*zero=*/false);
    for (const RuleState& kept : state.rule->state(acc)) {
      state.names.push_back(kept.name);
      state.shard.state.push_back(flat_like(values, kept.dtype, /*zero=*/true));
    }
    state.shard.shard = std::move(shard);
    state.runs = runs_of(state);
    states_.push_back(std::move(state));
  }
  adopt_values();
}

const Rule& Optimizer::rule_of(const nn::Param& param) {
  const std::string name = param.rule.empty() ? rule_name(config_, param.spec()) : param.rule;
  std::unique_ptr<Rule>& rule = rules_[name];
  if (rule == nullptr) rule = make_rule(config_, name);
  return *rule;
}

std::vector<Optimizer::Run> Optimizer::runs_of(const State& state) const {
  std::vector<Run> runs;
  int64_t end = -1; // of the last run, with the gap behind it: zero, and zero it stays
  for (const nn::Piece& piece : state.shard.shard.pieces) {
    const nn::ShardSpec& spec = piece.param->spec();
    Factors factors = factors_of(config_.param_groups, piece.param->name(),
                                 std::ssize(spec.shape) - spec.stacked_dims >= 2);
    factors.lr *= piece.param->lr_scale;
    const auto found = first_steps_.find(piece.param->name());
    const int64_t first_step = found == first_steps_.end() ? 0 : found->second;
    const auto fits = [&](const Run& run) {
      return piece.begin == end && run.factors == factors && run.first_step == first_step &&
             (!state.rule->needs_whole() || run.range.size < kBatch);
    };
    if (runs.empty() || !fits(runs.back()))
      runs.push_back(
          {.range = {piece.begin, 0}, .pieces = {}, .factors = factors, .first_step = first_step});
    Run& run = runs.back();
    run.range.size = piece.begin + piece.size - run.range.begin;
    run.pieces.push_back(piece);
    run.pieces.back().begin -= run.range.begin;
    end = piece.begin + (piece.size + kGap - 1) / kGap * kGap;
  }
  return runs;
}

void Optimizer::set_steps(int64_t steps, FirstSteps first_steps) {
  steps_ = steps;
  first_steps_ = std::move(first_steps);
  for (State& state : states_) state.runs = runs_of(state);
}

void Optimizer::adopt_values() {
  for (const State& state : states_) {
    const at::Tensor& values = state.shard.shard.values;
    if (state.remainder.defined())
      at::Tensor(state.remainder).zero_();
    else if (!state.shard.master.is_same(values))
      state.shard.master.copy_(values);
  }
}

void Optimizer::step(double lr, double weight_decay, double grad_scale) {
  ++steps_;
  for (const State& state : states_) {
    for (const Run& run : state.runs)
      step(state, run,
           {.lr = lr * run.factors.lr,
            .weight_decay = weight_decay * run.factors.decay,
            .grad_scale = grad_scale,
            .step = steps_ - run.first_step});
  }
}

void Optimizer::step(const State& state, const Run& run, const Hyperparameters& how) const {
  const ShardState& all = state.shard;
  const at::ScalarType acc = nn::acc_dtype(all.shard.values.scalar_type());
  const bool narrow =
      state.remainder.defined() || std::ranges::any_of(all.state, [&](const at::Tensor& kept) {
        return kept.scalar_type() != acc;
      });
  const bool whole = state.rule->needs_whole();
  const int64_t end = run.range.begin + run.range.size,
                most = narrow && !whole ? kWidened : run.range.size;
  for (int64_t begin = run.range.begin; begin < end; begin += most) {
    const auto part = [&](const at::Tensor& flat) {
      return flat.narrow(0, begin, std::min(most, end - begin));
    };
    ShardState own{.shard = {.values = part(all.shard.values),
                             .gradients = part(all.shard.gradients),
                             .pieces = whole ? run.pieces : std::vector<nn::Piece>{},
                             .replicas = all.shard.replicas,
                             .tensor = all.shard.tensor},
                   .master = state.remainder.defined()
                                 ? joined(part(all.shard.values), part(state.remainder))
                                 : part(all.master),
                   .state = {}};
    for (const at::Tensor& kept : all.state) own.state.push_back(part(kept).to(acc));
    state.rule->step(own, how);
    if (!narrow) continue;
    for (size_t i = 0; i < own.state.size(); ++i) part(all.state[i]).copy_(own.state[i]);
    if (state.remainder.defined())
      split_master(own.master, own.shard.values, part(state.remainder));
  }
}

void Optimizer::for_each_state(const StateFn& fn) {
  for (const State& state : states_) {
    const nn::Shard& shard = state.shard.shard;
    const auto visit = [&](const std::string& what, const at::Tensor& flat) {
      for (const nn::Piece& piece : shard.pieces)
        fn(shard, piece, what, flat.narrow(0, piece.begin, piece.size));
    };
    if (state.remainder.defined())
      visit("remainder", state.remainder);
    else if (!state.shard.master.is_same(shard.values))
      visit("master", state.shard.master);
    for (size_t i = 0; i < state.names.size(); ++i) visit(state.names[i], state.shard.state[i]);
  }
}

double clip_coefficient(double max_norm, double norm) {
  return max_norm > 0 ? std::min(1.0, max_norm / (norm + 1e-6)) : 1.0;
}

} // namespace pentatron::optim
