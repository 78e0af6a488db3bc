// The states of an optimizer that are kept in fewer bits than they are updated in.
#include <ATen/ATen.h>

#include <algorithm>

#include "pentatron/base/planted_bug.h"
#include "pentatron/kernels/quantize/quantize.h"
#include "pentatron/nn/host_copies.h"
#include "pentatron/nn/ops/kernel_args.h"
#include "pentatron/optim/optimizer.h"
#include "pentatron/optim/rules.h"

namespace pentatron::optim {

namespace {

/// Calls `visit` for what pieces have of [begin, begin + size), counted from begin.
template <class Visit>
void for_each_overlap(const std::vector<nn::Piece>& pieces, int64_t begin, int64_t size,
                      const Visit& visit) {
  for (const nn::Piece& piece : pieces) {
    const int64_t from = std::max(begin, piece.begin),
                  to = std::min(begin + size, piece.begin + piece.size);
    if (from < to) visit(piece, from - begin, to - from);
  }
}

double largest_size(const at::Tensor& flat) {
  if (flat.is_cpu() && flat.scalar_type() != at::kDouble)
    return kernels::largest_size(nn::kernel_dtype(flat.scalar_type()), flat.numel(),
                                 flat.const_data_ptr());
  const auto [low, high] = flat.aminmax();
  return nn::host_value<double>(at::maximum(low.neg(), high));
}

} // namespace

std::vector<std::string> Optimizer::scaled_names() const {
  std::vector<std::string> names;
  for (const State& state : states_)
    for (const RuleState& kept : state.kept)
      for (const nn::Piece& piece : state.shard.shard.pieces)
        if (is_scaled(kept.dtype)) names.push_back(piece.param->name() + "/" + kept.name);
  return names;
}

void Optimizer::set_bounds(const StateBounds::Bounds& bounds) {
  for (const auto& [name, bound] : bounds_.all()) {
    const auto found = bounds.find(name);
    bounds_.set(name, found == bounds.end() ? 0 : found->second);
  }
  next_bounds_ = bounds_;
}

StateBounds Optimizer::grown(double weight_decay, double grad_scale) const {
  std::map<std::string, double> own;
  for (const State& state : states_) {
    const nn::Shard& shard = state.shard.shard;
    for (const Run& run : state.runs)
      for (const nn::Piece& piece : run.pieces) {
        const auto most = [&](const at::Tensor& flat) {
          return largest_size(flat.narrow(0, run.range.begin + piece.begin, piece.size));
        };
        if (piece.size == 0 || std::ranges::none_of(state.kept, [](const RuleState& kept) {
              return is_scaled(kept.dtype);
            }))
          continue;
        const double gradient = most(shard.gradients) * grad_scale;
        for (const RuleState& kept : state.kept) {
          if (!is_scaled(kept.dtype)) continue;
          double& largest = own[piece.param->name() + "/" + kept.name];
          double here = gradient;
          const double decay = weight_decay * run.factors.decay;
          // Values are rounded, and a sum of two numbers too.
          if (kept.growth.decayed && decay != 0) here += 1.01 * decay * most(shard.values);
          largest = std::max(largest, here);
        }
      }
  }
  StateBounds next = bounds_;
  const bool alone = planted("state_scales_of_one_rank");
  const std::map<std::string, double> all = alone ? own : bounds_.largest(own);
  const std::map<std::string, RuleState::Growth> growth = growth_of_states(config_);
  for (const auto& [name, largest] : all) {
    const RuleState::Growth& g = growth.at(name.substr(name.rfind('/') + 1));
    next.set(name, g.decay * bounds_.of(name) + g.gain * (g.squared ? largest * largest : largest));
  }
  return next;
}

at::Tensor Optimizer::widen(const Part& part, const RuleState& what,
                            const at::Tensor& stored) const {
  const at::ScalarType acc = nn::acc_dtype(part.state->shard.shard.values.scalar_type());
  if (!is_scaled(what.dtype)) return stored.to(acc);
  const bool root = stores_root(what.dtype, what.growth.squared);
  at::Tensor wide = at::empty(stored.sizes(), stored.options().dtype(acc));
  if (std::ranges::none_of(part.run->pieces, [&](const nn::Piece& piece) {
        return piece.begin <= part.begin && part.begin + part.size <= piece.begin + piece.size;
      }))
    wide.zero_(); // the gaps between parameters, too
  for_each_overlap(part.run->pieces, part.begin, part.size,
                   [&](const nn::Piece& piece, int64_t from, int64_t size) {
                     const double bound = bounds_.of(piece.param->name() + "/" + what.name);
                     widen_into(wide.narrow(0, from, size), stored.narrow(0, from, size),
                                state_scale(bound, what.dtype, root), root);
                   });
  return wide;
}

void Optimizer::raise_squares(const Part& part, const std::vector<at::Tensor>& states) const {
  const std::vector<RuleState>& kept = part.state->kept;
  const auto coarse = std::ranges::find_if(kept, [](const RuleState& what) {
    return what.dtype == at::kFloat8_e4m3fn && !what.growth.squared && by_chance(what);
  });
  if (coarse == kept.end()) return;
  for (size_t i = 0; i < kept.size(); ++i) {
    const double decay = kept[i].growth.decay; // 0: nothing of what it was stays
    if (!kept[i].growth.squared || stores_root(kept[i].dtype, true) || decay == 0) continue;
    for_each_overlap(part.run->pieces, part.begin, part.size,
                     [&](const nn::Piece& piece, int64_t from, int64_t size) {
                       const double bound = bounds_.of(piece.param->name() + "/" + coarse->name);
                       if (bound == 0) return;
                       const double least = smallest_state(bound, coarse->dtype);
                       states[i].narrow(0, from, size).clamp_min_(least * least / decay);
                     });
  }
}

void Optimizer::narrow(const Part& part, const RuleState& what, int64_t step,
                       const at::Tensor& stored, const at::Tensor& value) const {
  const bool scaled = is_scaled(what.dtype), chance = by_chance(what);
  if (!scaled && !chance) {
    stored.copy_(value);
    return;
  }
  const bool squared = what.growth.squared, root = stores_root(what.dtype, squared);
  for_each_overlap(
      part.run->pieces, part.begin, part.size,
      [&](const nn::Piece& piece, int64_t from, int64_t size) {
        const std::string name = piece.param->name() + "/" + what.name;
        const double scale = scaled ? state_scale(next_bounds_.of(name), what.dtype, root) : 1;
        const at::Tensor to = stored.narrow(0, from, size), own = value.narrow(0, from, size);
        if (!chance) return store_narrow(to, own, scale, squared);
        const nn::FlatRange range{piece.param_begin + part.begin + from - piece.begin, size};
        store_by_chance(
            to, own, scale, squared,
            {.name = name,
             .step = step,
             .runs = nn::global_runs(piece.param->spec(), piece.param->where(), range)});
      });
}

} // namespace pentatron::optim
