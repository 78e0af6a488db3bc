#include "pentatron/optim/optimizer.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "pentatron/base/error.h"
#include "pentatron/base/planted_bug.h"
#include "pentatron/kernels/optimizer/buffer.h"
#include "pentatron/kernels/optimizer/optimizer.h"
#include "pentatron/nn/host_copies.h"
#include "pentatron/nn/memory/counting_allocator.h"
#include "pentatron/nn/ops/kernel_args.h"
#include "pentatron/optim/elementwise.h"
#include "pentatron/optim/matrix_grid.h"
#include "pentatron/optim/remainder.h"
#include "pentatron/optim/rules.h"

namespace pentatron::optim {

namespace {

constexpr int64_t kGap = 64; // stores begin parameters at multiples of this
/// Where a rule works on whole parameters: so many elements at once, which bounds what an update
/// needs beside the state; tensor ranks share the matrices among them.
constexpr int64_t kBatch = AwayState::kWholePart;

at::Tensor flat_like(const at::Tensor& values, at::ScalarType dtype) {
  const nn::MemoryScope scope(nn::MemoryCategory::kOptimizer);
  return at::zeros(values.sizes(), values.options().dtype(dtype));
}

} // namespace

namespace {

at::Tensor sum_of_squares(const std::vector<at::Tensor>& parts, at::Device device) {
  if (parts.empty()) return at::zeros({}, at::dtype(at::kDouble).device(device));
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
  return sums.sum();
}

/// The ranges of a piece that its rank counts, in order.
std::vector<nn::FlatRange> counted_of(const nn::Piece& piece) {
  std::vector<nn::FlatRange> ranges =
      nn::ranges_in_shard(piece, nn::counted_ranges(piece.param->spec(), piece.param->where()));
  std::ranges::sort(ranges, {}, &nn::FlatRange::begin);
  return ranges;
}

} // namespace

at::Tensor counted_sum_of_squares(const std::vector<nn::Shard>& shards, at::Device device) {
  std::vector<at::Tensor> counted;
  for (const nn::Shard& shard : shards) {
    if (!shard.trainable()) continue;
    for (const nn::Piece& piece : shard.pieces)
      for (const nn::FlatRange& range : counted_of(piece))
        counted.push_back(shard.gradients.narrow(0, range.begin, range.size));
  }
  return sum_of_squares(counted, device);
}

at::Tensor has_nonfinite_copies(const std::vector<nn::Shard>& shards, bool all, at::Device device) {
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
  return at::isfinite(sum_of_squares(copies, device)).logical_not();
}

std::string first_nonfinite_gradient(const std::vector<nn::Shard>& shards) {
  for (const nn::Shard& shard : shards) {
    if (!shard.trainable()) continue;
    for (const nn::Piece& piece : shard.pieces) {
      const at::Tensor own = shard.gradients.narrow(0, piece.begin, piece.size);
      if (!nn::host_value<bool>(at::isfinite(own).all())) return piece.param->name();
    }
  }
  return {};
}

Optimizer::Optimizer(const OptimizerConfig& config, std::vector<nn::Shard> shards,
                     comm::Group world, AwayState away)
    : config_(config), away_(std::move(away)) {
  for (nn::Shard& shard : shards) {
    if (shard.pieces.empty()) continue;
    if (!shard.trainable()) {
      if (!planted("frozen_parameters_decayed")) continue;
      shard.gradients = at::zeros_like(shard.values);
    }
    add_shard(std::move(shard));
  }
  adopt_values();
  if (is_scaled(state_dtype(config_.exp_avg_dtype, at::kFloat)) ||
      is_scaled(state_dtype(config_.exp_avg_sq_dtype, at::kFloat)))
    bounds_ = next_bounds_ = StateBounds(scaled_names(), std::move(world));
}

/// Cuts a shard at about `size` elements: where a parameter begins if rules need them whole.
static std::pair<nn::Shard, nn::Shard> cut(const nn::Shard& shard, int64_t size, bool whole) {
  const int64_t n = shard.values.numel();
  int64_t at = std::min(n, (size + kGap - 1) / kGap * kGap);
  if (whole) {
    const auto next = std::ranges::lower_bound(shard.pieces, size, {}, &nn::Piece::begin);
    at = next == shard.pieces.end() ? n : next->begin;
  }
  std::pair<nn::Shard, nn::Shard> both{shard, shard};
  const auto take = [&](nn::Shard& part, int64_t begin, int64_t end) {
    part.values = shard.values.narrow(0, begin, end - begin);
    part.gradients = shard.gradients.narrow(0, begin, end - begin);
    part.pieces.clear();
    for (const nn::Piece& piece : shard.pieces) {
      const int64_t first = std::max(begin, piece.begin),
                    last = std::min(end, piece.begin + piece.size);
      if (first < last || (piece.size == 0 && piece.begin >= begin && piece.begin < end))
        part.pieces.push_back({piece.param, piece.param_begin + first - piece.begin, first - begin,
                               std::max<int64_t>(0, last - first)});
    }
  };
  take(both.first, 0, at);
  take(both.second, at, n);
  return both;
}

void Optimizer::add_shard(nn::Shard shard) {
  if (away_.store == nullptr || away_.fraction >= 1)
    return make_state(std::move(shard), away_.store != nullptr);
  const Rule& rule = rule_of(*shard.pieces.front().param);
  const auto size =
      static_cast<int64_t>(away_.fraction * static_cast<double>(shard.values.numel()));
  auto [gone, stays] = cut(shard, size, rule.needs_whole());
  if (!gone.pieces.empty()) make_state(std::move(gone), true);
  if (!stays.pieces.empty()) make_state(std::move(stays), false);
}

at::Tensor Optimizer::vector_like(const at::Tensor& values, at::ScalarType dtype, bool away) const {
  return away ? away_.store->add(values.numel(), dtype) : flat_like(values, dtype);
}

void Optimizer::make_state(nn::Shard shard, bool away) {
  State& state = states_.emplace_back();
  state.away = away;
  state.rule = &rule_of(*shard.pieces.front().param);
  const at::Tensor& values = shard.values;
  const at::ScalarType acc = nn::acc_dtype(values.scalar_type());
  if (keeps_remainder(config_, values.scalar_type()))
    state.remainder = vector_like(values, at::kShort, away);
  else
    state.shard.master = values.scalar_type() == acc ? values : vector_like(values, acc, away);
  if (averages()) state.average = vector_like(values, acc, away);
  state.shard.shard = std::move(shard);
  for (const RuleState& kept : state.rule->state(acc)) {
    if (kept.extent != RuleState::Extent::kElements) {
      make_reduced(state, kept);
      continue;
    }
    state.kept.push_back(kept);
    state.shard.state.push_back(vector_like(state.shard.shard.values, kept.dtype, away));
  }
  state.runs = runs_of(state);
}

void Optimizer::make_reduced(State& state, const RuleState& what) const {
  const nn::MemoryScope scope(nn::MemoryCategory::kOptimizer);
  const bool rows = what.extent == RuleState::Extent::kRows;
  for (const nn::Piece& piece : state.shard.shard.pieces) {
    const nn::ShardSpec& spec = piece.param->spec();
    auto of = std::make_unique<nn::Param>(rows ? spec_of_rows(spec) : spec_of_columns(spec),
                                          nn::Init::constant(0), what.dtype, piece.param->where());
    const at::Tensor data =
        at::zeros({of->numel()}, state.shard.shard.values.options().dtype(what.dtype));
    state.reduced[piece.param].push_back({what.name, std::move(of), data});
  }
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
             (!state.rule->needs_whole() || run.range.size + piece.size <= kBatch);
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
  queued_steps_ = at::Tensor();
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
    if (state.average.defined()) at::Tensor(state.average).copy_(values);
  }
}

void Optimizer::step(double lr, double weight_decay, double grad_scale,
                     const ScaledRanges& scaled) {
  steps_ = steps() + 1;
  queued_steps_ = at::Tensor();
  scaled_ = &scaled;
  if (!bounds_.empty()) next_bounds_ = grown(weight_decay, grad_scale);
  step_all([&](const Run& run) {
    return Hyperparameters{.lr = lr * run.factors.lr,
                           .weight_decay = weight_decay * run.factors.decay,
                           .grad_scale = grad_scale,
                           .step = steps_ - run.first_step};
  });
  bounds_ = next_bounds_;
  scaled_ = nullptr;
}

bool Optimizer::can_queue() const {
  return bounds_.empty() && !averages() && std::ranges::all_of(states_, [](const State& state) {
           return state.rule->takes_control() && std::ranges::none_of(state.kept, by_chance);
         });
}

void Optimizer::queue_step(double lr, double weight_decay, const at::Tensor& control) {
  PT_DCHECK(can_queue());
  if (!queued_steps_.defined())
    queued_steps_ = at::full({1}, static_cast<double>(steps_), control.options());
  queued_steps_ = queued_steps_ + control.narrow(0, 1, 1);
  const at::Tensor all = at::cat({control, queued_steps_}); // an UpdateControl
  static_assert(sizeof(kernels::UpdateControl) == 3 * sizeof(double));
  const ScaledRanges none;
  scaled_ = &none;
  step_all([&](const Run& run) {
    return Hyperparameters{.lr = lr * run.factors.lr,
                           .weight_decay = weight_decay * run.factors.decay,
                           .control =
                               static_cast<const kernels::UpdateControl*>(all.const_data_ptr()),
                           .first_step = run.first_step};
  });
  scaled_ = nullptr;
}

int64_t Optimizer::steps() const {
  return queued_steps_.defined() ? static_cast<int64_t>(nn::host_value<double>(queued_steps_))
                                 : steps_;
}

void Optimizer::scale(const ShardState& part, const Run& run, int64_t begin) const {
  if (scaled_->empty()) return;
  const int64_t size = part.master.numel();
  for (const nn::Piece& piece : run.pieces) {
    const auto found = scaled_->find(piece.param);
    if (found == scaled_->end()) continue;
    const int64_t shift = piece.begin - piece.param_begin - begin; // of the tensor's elements
    const int64_t low = std::max<int64_t>(0, piece.begin - begin),
                  high = std::min(size, piece.begin + piece.size - begin);
    for (const ScaledRange& range : found->second) {
      const int64_t from = std::max(low, range.range.begin + shift),
                    to = std::min(high, range.range.begin + range.range.size + shift);
      if (from >= to) continue;
      part.master.narrow(0, from, to - from).mul_(range.factor);
      if (part.has_copy())
        round_master(part.shard.values.narrow(0, from, to - from),
                     part.master.narrow(0, from, to - from));
    }
  }
}

std::vector<Optimizer::Part> Optimizer::parts() const {
  std::vector<Part> parts;
  for (const State& state : states_)
    for (const Run& run : state.runs) {
      const bool cuts = state.away && !state.rule->needs_whole();
      const int64_t most = cuts ? away_.part : run.range.size;
      for (int64_t begin = 0; begin < run.range.size; begin += most)
        parts.push_back({&state, &run, begin, std::min(most, run.range.size - begin)});
    }
  return parts;
}

Optimizer::Stored Optimizer::stored(const Part& part) const {
  const auto view = [&](const at::Tensor& flat) {
    return flat.defined() ? flat.narrow(0, part.run->range.begin + part.begin, part.size) : flat;
  };
  const State& state = *part.state;
  Stored stored{view(state.shard.master), view(state.remainder), view(state.average), {}};
  for (const at::Tensor& flat : state.shard.state) stored.state.push_back(view(flat));
  return stored;
}

std::vector<at::Tensor*> Optimizer::own_vectors(const State& state, Stored& stored) {
  std::vector<at::Tensor*> own;
  if (stored.master.defined() && !state.shard.master.is_same(state.shard.shard.values))
    own.push_back(&stored.master);
  if (stored.remainder.defined()) own.push_back(&stored.remainder);
  if (stored.average.defined()) own.push_back(&stored.average);
  for (at::Tensor& vector : stored.state) own.push_back(&vector);
  return own;
}

/// Of parts that are away, one is read while the one before is updated, and the one before that is
/// written.
void Optimizer::step_all(const std::function<Hyperparameters(const Run&)>& how) const {
  const std::vector<Part> all = parts();
  size_t next = 0; // that is to be read
  std::shared_ptr<nn::StateStore::Part> coming, leaving;
  const auto bring = [&] {
    while (next < all.size() && !all[next].state->away) ++next;
    coming = nullptr;
    if (next == all.size()) return;
    Stored views = stored(all[next]);
    std::vector<at::Tensor> pieces;
    for (const at::Tensor* view : own_vectors(*all[next].state, views)) pieces.push_back(*view);
    coming = away_.store->bring(pieces);
    ++next;
  };
  bring();
  for (const Part& part : all) {
    Stored here = stored(part);
    if (!part.state->away) {
      step(part, how(*part.run), here);
      continue;
    }
    const std::shared_ptr<nn::StateStore::Part> moving = coming;
    moving->arrive();
    size_t i = 0;
    for (at::Tensor* vector : own_vectors(*part.state, here)) *vector = moving->buffers()[i++];
    bring();
    step(part, how(*part.run), here);
    moving->leave();
    if (leaving != nullptr) leaving->settle();
    leaving = moving;
  }
  if (leaving != nullptr) leaving->settle();
}

void Optimizer::step(const Part& part, const Hyperparameters& how, const Stored& stored) const {
  const State& state = *part.state;
  const at::ScalarType acc = nn::acc_dtype(state.shard.shard.values.scalar_type());
  const bool in_parts =
      state.average.defined() || state.remainder.defined() ||
      std::ranges::any_of(state.kept, [&](const RuleState& kept) { return kept.dtype != acc; });
  const int64_t most = in_parts && !state.rule->needs_whole() ? kWidened : part.size;
  for (int64_t begin = 0; begin < part.size; begin += most) {
    const int64_t size = std::min(most, part.size - begin);
    const auto view = [&](const at::Tensor& flat) {
      return flat.defined() ? flat.narrow(0, begin, size) : flat;
    };
    Stored some{view(stored.master), view(stored.remainder), view(stored.average), {}};
    for (const at::Tensor& flat : stored.state) some.state.push_back(view(flat));
    step_part({&state, part.run, part.begin + begin, size}, how, some);
  }
}

void Optimizer::step_part(const Part& p, const Hyperparameters& how, const Stored& stored) const {
  const State& state = *p.state;
  const Run& run = *p.run;
  const nn::Shard& shard = state.shard.shard;
  const bool whole = state.rule->needs_whole();
  const auto part = [&](const at::Tensor& flat) {
    return flat.narrow(0, run.range.begin + p.begin, p.size);
  };
  ShardState own{.shard = {.values = part(shard.values),
                           .gradients = part(shard.gradients),
                           .pieces = whole ? run.pieces : std::vector<nn::Piece>{},
                           .replicas = shard.replicas,
                           .tensor = shard.tensor},
                 .master = stored.remainder.defined() ? joined(part(shard.values), stored.remainder)
                                                      : stored.master,
                 .state = {}};
  for (size_t i = 0; i < state.kept.size(); ++i)
    own.state.push_back(widen(p, state.kept[i], stored.state[i]));
  raise_squares(p, own.state);
  for (const nn::Piece& piece : own.shard.pieces) {
    const auto found = state.reduced.find(piece.param);
    if (found == state.reduced.end()) continue;
    const int dims = piece.param->spec().stacked_dims;
    std::vector<at::Tensor>& of_piece = own.reduced.emplace_back();
    for (const Reduced& kept : found->second) {
      std::vector<int64_t> shape(kept.of->shape().begin() + dims, kept.of->shape().end());
      shape.insert(shape.begin(), -1); // all members of a stack
      of_piece.push_back(kept.data.view(shape));
    }
  }
  state.rule->step(own, how);
  scale(own, run, p.begin);
  for (size_t i = 0; i < state.kept.size(); ++i)
    if (!own.state[i].is_alias_of(stored.state[i]))
      narrow(p, state.kept[i], how.step, stored.state[i], own.state[i]);
  if (stored.remainder.defined()) split_master(own.master, own.shard.values, stored.remainder);
  if (stored.average.defined()) stored.average.lerp_(own.master, 1 - config_.ema_decay);
}

void Optimizer::swap_average() {
  for (const State& state : states_) {
    if (!state.average.defined()) continue;
    const at::Tensor &values = state.shard.shard.values, &spare = state.shard.shard.gradients;
    if (swapped_) {
      values.copy_(spare);
      at::Tensor(spare).zero_();
    } else {
      spare.copy_(values); // exact: the accumulate type holds every number of the model's type
      values.copy_(state.average);
    }
  }
  swapped_ = !swapped_;
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
    for (size_t i = 0; i < state.kept.size(); ++i) visit(state.kept[i].name, state.shard.state[i]);
    if (state.average.defined()) visit(kAverage, state.average);
    for (const nn::Piece& piece : shard.pieces) {
      const auto found = state.reduced.find(piece.param);
      if (found == state.reduced.end()) continue;
      for (const Reduced& kept : found->second)
        fn(shard, {kept.of.get(), 0, 0, kept.of->numel()}, kept.name, kept.data);
    }
  }
}

double clip_coefficient(double max_norm, double norm) {
  return max_norm > 0 ? std::min(1.0, max_norm / (norm + 1e-6)) : 1.0;
}

} // namespace pentatron::optim
