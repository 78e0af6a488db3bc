#include "pentatron/trainer/recompute.h"

#include <algorithm>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "pentatron/base/format.h"

namespace pentatron::trainer {

namespace {

/// The plan is an estimate.
constexpr double kUsed = 0.9;

/// Sets of parts, each with those of the set before: in the order in which they cost little for a
/// byte. Parts that a model does not have change nothing.
std::vector<std::vector<nn::Part>> sets_of_parts() {
  using nn::Part;
  std::vector<std::vector<nn::Part>> sets = {{Part::kMlpActivation, Part::kMoeActivation}};
  for (const Part next : {Part::kNorm, Part::kMlaUpProj, Part::kCoreAttention, Part::kSharedExperts,
                          Part::kMoe, Part::kMlp}) {
    sets.push_back(sets.back());
    sets.back().push_back(next);
  }
  return sets;
}

std::string settings_of(const TrainConfig& train) {
  if (train.recompute == Recompute::kNone) return "none";
  if (train.recompute == Recompute::kSelective) {
    std::vector<std::string> names;
    for (const nn::Part part : train.recompute_modules) names.push_back(config::to_string(part));
    return fmt::format("selective, of {}", fmt::join(names, ", "));
  }
  if (train.recompute_method == RecomputeMethod::kUniform) return "full, of every layer";
  return fmt::format("full, of {} in each stage", counted(train.recompute_num_layers, "layer"));
}

} // namespace

nn::Recomputation recomputation(const TrainConfig& train) {
  nn::Recomputation again;
  if (train.recompute == Recompute::kSelective)
    for (const nn::Part part : train.recompute_modules) again.parts.add(part);
  again.layers = train.recompute == Recompute::kFull;
  const bool block = train.recompute_method == RecomputeMethod::kBlock;
  if (again.layers) (block ? again.count : again.group) = train.recompute_num_layers;
  return again;
}

std::string choose_recomputation(Config& config, int world_size, const LocalRanks& here,
                                 int64_t free_bytes) {
  if (config.train.recompute != Recompute::kAuto) return "";
  struct Choice {
    TrainConfig train;
    double bytes = 0, time = 0;
  };
  const double limit = config.train.recompute_memory_limit * (1 << 20);
  const double room = limit > 0 ? limit : kUsed * static_cast<double>(free_bytes);
  const auto weigh = [&](const TrainConfig& train) {
    Config with = config;
    with.train = train;
    const MemoryPlan plan = plan_memory(with, world_size, here);
    return Choice{.train = train,
                  .bytes = limit > 0 ? plan.rank.total() : plan.machine,
                  .time = plan.recomputed};
  };
  TrainConfig train = config.train;
  train.recompute = Recompute::kNone;
  std::vector<Choice> choices = {weigh(train)};
  if (choices.front().bytes > room) {
    train.recompute = Recompute::kSelective;
    for (const std::vector<nn::Part>& parts : sets_of_parts()) {
      train.recompute_modules = parts;
      choices.push_back(weigh(train));
    }
    train.recompute_modules = TrainConfig{}.recompute_modules;
    train.recompute = Recompute::kFull;
    train.recompute_method = RecomputeMethod::kBlock;
    const int64_t layers = std::max<int64_t>(1, config.model.num_layers);
    for (int64_t low = 1, high = layers; low < high;) { // fewest layers that fit
      train.recompute_num_layers = low + (high - low) / 2;
      choices.push_back(weigh(train));
      (choices.back().bytes <= room ? high : low) =
          train.recompute_num_layers + (choices.back().bytes <= room ? 0 : 1);
    }
    train.recompute_method = RecomputeMethod::kUniform;
    train.recompute_num_layers = 1;
    choices.push_back(weigh(train));
  }
  const auto fits = [&](const Choice& choice) { return choice.bytes <= room; };
  const bool any = std::ranges::any_of(choices, fits);
  const Choice& best = *std::ranges::min_element(choices, [&](const Choice& a, const Choice& b) {
    if (fits(a) != fits(b)) return fits(a);
    return any ? a.time < b.time : a.bytes < b.bytes;
  });
  config.train = best.train;
  return fmt::format("recompute    {}: {} of {}, without recomputation {}", settings_of(best.train),
                     format_bytes(best.bytes),
                     limit > 0 ? fmt::format("at most {} a rank", format_bytes(limit))
                               : fmt::format("{} free", format_bytes(static_cast<double>(free_bytes))),
                     format_bytes(choices.front().bytes));
}

} // namespace pentatron::trainer
