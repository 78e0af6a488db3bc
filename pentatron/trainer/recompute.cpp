#include "pentatron/trainer/recompute.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <string_view>
#include <vector>

#include <unistd.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "pentatron/base/error.h"
#include "pentatron/base/format.h"
#include "pentatron/base/host_name.h"
#include "pentatron/comm/gather_text.h"
#include "pentatron/config/config.h"
#include "pentatron/parallelize/parallelize.h"
#include "pentatron/trainer/runtime.h"

namespace pentatron::trainer {

namespace {

/// Of free memory: other programs need some, too.
constexpr double kUsed = 0.9;

/// Of train.recompute_memory_limit: what the plan of such a run may lack.
double share_of_limit(const Config& config) {
  const bool varies = config.model.num_moe_experts || config.parallel.context_parallel_size > 1;
  return varies ? 0.9 : 0.98;
}

/// Every part that layers may have, in the order in which a set of them is told.
constexpr nn::Part kParts[] = {
    nn::Part::kMlpActivation, nn::Part::kMoeActivation, nn::Part::kNorm, nn::Part::kMlaUpProj,
    nn::Part::kCoreAttention, nn::Part::kSharedExperts, nn::Part::kMoe,  nn::Part::kMlp};

std::string settings_of(const TrainConfig& train) {
  if (train.recompute == Recompute::kNone) return "none";
  if (train.recompute == Recompute::kSelective) {
    std::vector<std::string> names;
    for (const nn::Part part : train.recompute_modules) names.emplace_back(config::to_string(part));
    return fmt::format("selective, of {}", fmt::join(names, ", "));
  }
  if (train.recompute_method == RecomputeMethod::kUniform)
    return train.recompute_num_layers == 1
               ? "full, of every layer"
               : fmt::format("full, of every layer, in groups of {}", train.recompute_num_layers);
  return fmt::format("full, of {} in each stage", counted(train.recompute_num_layers, "layer"));
}

/// Of a run that needs `bytes` with the choice that takes the least memory.
std::string too_little_memory(const Config& config, int world_size, const LocalRanks& here,
                              std::optional<int64_t> free_bytes, double bytes) {
  const std::string begin = "train.recompute=auto: the option that takes the least memory";
  const double limit = config.train.recompute_memory_limit;
  if (limit > 0)
    return fmt::format("{} needs about {} per rank, more than train.recompute_memory_limit={}\n"
                       "  try: train.recompute_memory_limit={}",
                       begin, format_bytes(bytes), limit, std::ceil(bytes / (1 << 20)));
  return fmt::format("{} needs about {} on this machine, which has {} free\n  try: {}", begin,
                     format_bytes(bytes), format_bytes(static_cast<double>(*free_bytes)),
                     memory_remedy(config, world_size, here, *free_bytes));
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

int64_t most_layers_of_a_stage(const Config& config) {
  const std::vector<models::SegmentSpec> segments = models::model_spec(config.model).segments;
  int64_t most = 0;
  for (const auto& stage : pipeline_plan(config).stages)
    most = std::max<int64_t>(
        most, std::count_if(segments.begin() + stage.begin, segments.begin() + stage.end,
                            [](const auto& segment) { return segment.recomputed; }));
  return most;
}

std::vector<int64_t> group_sizes(int64_t layers) {
  std::vector<int64_t> sizes;
  for (int64_t size = 1;;) {
    sizes.push_back(size);
    const int64_t groups = (layers + size - 1) / size;
    if (groups <= 1) return sizes;
    size = (layers + groups - 2) / (groups - 1);
  }
}

int64_t leanest_group(Config config, int world_size) {
  config.train.recompute = Recompute::kFull;
  config.train.recompute_method = RecomputeMethod::kUniform;
  int64_t leanest = 1;
  double least = 0;
  for (const int64_t size : group_sizes(std::max<int64_t>(1, most_layers_of_a_stage(config)))) {
    config.train.recompute_num_layers = size;
    const double bytes = plan_memory(config, world_size).rank.total();
    if (size > 1 && bytes >= least) continue;
    leanest = size;
    least = bytes;
  }
  return leanest;
}

/// Those of `parts` that layers of the model have.
static std::vector<nn::Part> parts_there(const models::ModelConfig& model,
                                         std::vector<nn::Part> parts) {
  using nn::Part;
  const models::ModelConfig few = model.with_one_layer(); // of each kind
  bool dense = false, experts = false;
  for (int64_t i = 0; i < few.num_layers; ++i) (few.is_moe_layer(i) ? experts : dense) = true;
  const bool shared = experts && model.moe_shared_expert_intermediate_size;
  std::erase_if(parts, [&](Part part) {
    return part == Part::kMlaUpProj                             ? !model.multi_latent_attention
           : part == Part::kMoe || part == Part::kMoeActivation ? !experts
           : part == Part::kSharedExperts                       ? !shared
           : part == Part::kMlp                                 ? !dense
           : part == Part::kMlpActivation                       ? !dense && !shared
                                                                : false;
  });
  return parts;
}

RecomputeChoice choose_recomputation(Config& config, int world_size, const LocalRanks& here,
                                     std::optional<int64_t> free_bytes) {
  if (config.train.recompute != Recompute::kAuto) return {};
  struct Choice {
    TrainConfig train;
    double bytes = 0, time = 0;
  };
  const double limit = config.train.recompute_memory_limit * (1 << 20);
  if (limit == 0 && !free_bytes)
    raise<ConfigError>("train.recompute=auto does not know how much memory the device has\n  try: "
                       "train.recompute_memory_limit=60000, in MiB");
  const double room =
      limit > 0 ? share_of_limit(config) * limit : kUsed * static_cast<double>(*free_bytes);
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
    const std::vector<nn::Part> parts =
        parts_there(config.model, {std::begin(kParts), std::end(kParts)});
    for (size_t set = 1; set < size_t{1} << parts.size(); ++set) {
      train.recompute_modules.clear();
      for (size_t i = 0; i < parts.size(); ++i)
        if ((set >> i & 1) != 0) train.recompute_modules.push_back(parts[i]);
      choices.push_back(weigh(train));
    }
    train.recompute_modules = TrainConfig{}.recompute_modules;
    train.recompute = Recompute::kFull;
    train.recompute_method = RecomputeMethod::kBlock;
    const int64_t layers = std::max<int64_t>(1, most_layers_of_a_stage(config));
    for (int64_t low = 1, high = layers; low < high;) { // fewest layers that fit
      train.recompute_num_layers = low + (high - low) / 2;
      choices.push_back(weigh(train));
      (choices.back().bytes <= room ? high : low) =
          train.recompute_num_layers + (choices.back().bytes <= room ? 0 : 1);
    }
    // Groups take the same time whatever their size: of those that fit, the first is taken.
    train.recompute_method = RecomputeMethod::kUniform;
    for (const int64_t size : group_sizes(layers)) {
      train.recompute_num_layers = size;
      choices.push_back(weigh(train));
    }
  }
  const auto fits = [&](const Choice& choice) { return choice.bytes <= room; };
  const bool any = std::ranges::any_of(choices, fits);
  const Choice& best = *std::ranges::min_element(choices, [&](const Choice& a, const Choice& b) {
    if (fits(a) != fits(b)) return fits(a);
    return any ? a.time < b.time : a.bytes < b.bytes;
  });
  config.train = best.train;
  const std::string of =
      limit > 0 ? fmt::format("at most {} per rank", format_bytes(limit))
                : fmt::format("{} free", format_bytes(static_cast<double>(*free_bytes)));
  RecomputeChoice choice;
  choice.line =
      fmt::format("recompute    {}: {} of {}, without recomputation {}", settings_of(best.train),
                  format_bytes(best.bytes), of, format_bytes(choices.front().bytes));
  if (!any && best.bytes > (limit > 0 ? limit : static_cast<double>(*free_bytes)))
    choice.warning = too_little_memory(config, world_size, here, free_bytes, best.bytes);
  return choice;
}

Config with_recomputation(Config config, const comm::Group& world) {
  if (config.train.recompute != Recompute::kAuto) return config;
  const std::string machine = host_name() + " ";
  const std::vector<std::string> processes =
      comm::gather_text(machine + std::to_string(::getpid()), world);
  std::string chosen;
  if (world.rank() == 0) {
    std::multiset<std::string> here;
    for (const std::string& process : processes)
      if (process.starts_with(machine)) here.insert(process);
    const std::set<std::string> once(here.begin(), here.end());
    choose_recomputation(
        config, world.size(),
        {.ranks = static_cast<int>(here.size()), .processes = static_cast<int>(once.size())},
        free_bytes_of(config.device));
    chosen = config::to_yaml(config);
  }
  chosen = comm::broadcast_text(chosen, 0, world);
  config::Violations violations;
  config::apply_yaml(config, chosen, "rank 0", violations);
  violations.throw_if_any();
  return config;
}

void check_recomputation(const TrainConfig& train, const models::ModelConfig& model,
                         config::Violations& violations) {
  const TrainConfig defaults;
  // Where recompute was chosen, the key goes: two keys that each ask for another choice would lead
  // from one to the other.
  const auto useless = [&](const char* key, const std::string& value, const char* needed,
                           const std::string& unset) {
    violations.add(fmt::format("train.{}", key),
                   fmt::format("train.{}={} has no effect with train.recompute={}", key, value,
                               config::to_string(train.recompute)),
                   train.recompute == Recompute::kNone || unset.empty()
                       ? fmt::format("train.recompute={}", needed)
                       : fmt::format("train.{}={}", key, unset));
  };
  const auto names = [](const std::vector<nn::Part>& parts) {
    std::vector<std::string_view> list;
    for (const nn::Part part : parts) list.push_back(config::to_string(part));
    return fmt::format("[{}]", fmt::join(list, ","));
  };
  if (train.recompute != Recompute::kFull) {
    if (train.recompute_method != defaults.recompute_method)
      useless("recompute_method", std::string(config::to_string(train.recompute_method)), "full",
              std::string(config::to_string(defaults.recompute_method)));
    if (train.recompute_num_layers != defaults.recompute_num_layers)
      useless("recompute_num_layers", fmt::format("{}", train.recompute_num_layers), "full",
              fmt::format("{}", defaults.recompute_num_layers));
  }
  if (train.recompute != Recompute::kAuto && train.recompute_memory_limit > 0)
    useless("recompute_memory_limit", fmt::format("{}", train.recompute_memory_limit), "auto", "");
  if (train.recompute_modules == defaults.recompute_modules) return;
  if (train.recompute != Recompute::kSelective)
    return useless("recompute_modules", names(train.recompute_modules), "selective",
                   names(defaults.recompute_modules));
  const std::vector<nn::Part> there = parts_there(model, train.recompute_modules);
  if (there.size() == train.recompute_modules.size() && !there.empty()) return;
  std::vector<std::string_view> missing;
  for (const nn::Part part : train.recompute_modules)
    if (std::ranges::find(there, part) == there.end()) missing.push_back(config::to_string(part));
  violations.add("train.recompute_modules",
                 fmt::format("train.recompute_modules={} {}", names(train.recompute_modules),
                             train.recompute_modules.empty()
                                 ? std::string("is empty, so train.recompute=selective has no "
                                               "effect")
                                 : fmt::format("includes {}, which no layer of the model has",
                                               fmt::join(missing, ", "))),
                 fmt::format("train.recompute_modules={}",
                             names(there.empty() ? defaults.recompute_modules : there)));
}

} // namespace pentatron::trainer
