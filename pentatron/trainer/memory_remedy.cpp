#include "pentatron/trainer/memory_plan.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "pentatron/base/error.h"
#include "pentatron/base/format.h"
#include "pentatron/base/log.h"
#include "pentatron/parallelize/parallelize.h"
#include "pentatron/trainer/memory_changes.h"
#include "pentatron/trainer/model_tokenizer.h"
#include "pentatron/trainer/recompute.h"
#include "pentatron/trainer/runtime.h"

namespace pentatron::trainer {

namespace {

/// Estimates are within 2 to 5 %: what needs more than that above what is free is refused, what may
/// need more is told, and what is advised needs clearly less.
constexpr double kRefused = 1.05, kTight = 0.95, kAdvised = 0.9;

/// The largest n in [1, limit] for which `works`, of a property that small numbers have; 0 if none.
int64_t largest(int64_t limit, const std::function<bool(int64_t)>& works) {
  if (limit < 1 || !works(1)) return 0;
  int64_t low = 1, high = limit;
  while (low < high) {
    const int64_t middle = low + (high - low + 1) / 2;
    (works(middle) ? low : high) = works(middle) ? middle : middle - 1;
  }
  return low;
}

/// The longest sequence that is enough of a change; a table of positions becomes as long.
std::optional<std::string> shorter_sequence(const Config& from,
                                            const std::function<bool(const Config&)>& enough) {
  if (from.dataset.type == data::DatasetType::kBatches) return std::nullopt; // theirs is fixed
  const bool table =
      from.model.position_embedding_type == models::PositionEmbedding::kLearnedAbsolute &&
      from.checkpoint.load.empty();
  const auto with_length = [&](int64_t n) {
    Config c = from;
    c.train.seq_length = n;
    if (table) c.model.max_position_embeddings = n + from.model.position_offset;
    return c;
  };
  const int64_t n =
      largest(from.train.seq_length - 1, [&](int64_t k) { return enough(with_length(k)); });
  if (n == 0) return std::nullopt;
  std::string keys = fmt::format("train.seq_length={}", n);
  if (table)
    keys += fmt::format(" model.max_position_embeddings={}", n + from.model.position_offset);
  return keys;
}

} // namespace

namespace {

/// What is tried against the memory that is free.
class Remedies {
 public:
  Remedies(int world_size, const LocalRanks& here, double bytes, OffloadFolder folder)
      : world_size_(world_size), here_(here), bytes_(bytes), folder_(std::move(folder)) {}

  bool enough(const Config& config) const {
    return plan_memory(config, world_size_, here_).machine <= kAdvised * bytes_;
  }

  /// Microbatches below that of `config` of which whole numbers make every batch, the largest
  /// first.
  std::vector<int64_t> micro_batches(const Config& config) const {
    std::vector<int64_t> sizes;
    const int dp = parallelize::data_parallel_size(config.parallel, world_size_);
    const optim::BatchSizeSchedule schedule = batch_schedule(config.train);
    for (int64_t n = config.train.micro_batch_size - 1; n >= 1;
         n = std::min(n - 1, n > 4096 ? n / 2 : n)) {
      config::Violations violations;
      schedule.check(n, dp, violations, "train.global_batch_size");
      if (violations.empty()) sizes.push_back(n);
    }
    return sizes;
  }

  /// The largest of `sizes` that is enough.
  std::optional<int64_t> smaller_micro_batch(Config config,
                                             const std::vector<int64_t>& sizes) const {
    const auto works = [&](int64_t count) { // of the smallest sizes
      config.train.micro_batch_size = sizes[sizes.size() - static_cast<size_t>(count)];
      return enough(config);
    };
    const int64_t count = largest(std::ssize(sizes), works);
    if (count == 0) return std::nullopt;
    return sizes[sizes.size() - static_cast<size_t>(count)];
  }

  /// The first of `changes` to `from` that is enough, alone or with smaller microbatches.
  std::optional<MemoryChange> first_enough(const Config& from,
                                           const std::vector<MemoryChange>& changes) const {
    const std::vector<int64_t> sizes = micro_batches(from);
    for (const MemoryChange& change : changes) {
      const Config to = with_change(from, change);
      std::optional<int64_t> micro_batch;
      if (!enough(to) && !(micro_batch = smaller_micro_batch(to, sizes))) continue;
      if (!is_valid(from, to) || !fits_on_disk(from, to)) continue;
      MemoryChange keys = change;
      if (micro_batch) keys.push_back(fmt::format("train.micro_batch_size={}", *micro_batch));
      return keys;
    }
    return std::nullopt;
  }

 private:
  /// Not every model and layout takes every setting.
  bool is_valid(const Config& from, const Config& to) const {
    config::Violations before, after;
    check_config(from, world_size_, before);
    check_config(to, world_size_, after);
    return after.list().size() <= before.list().size();
  }

  /// Of CPU ranks: the optimizer's state, and the activations that are no longer in memory.
  bool fits_on_disk(const Config& from, const Config& to) const {
    if (!on_cpu(to.device)) return true;
    const MemoryPlan before = plan_memory(from, world_size_, here_),
                     after = plan_memory(to, world_size_, here_);
    double needed = after.disk - before.disk;
    if (to.offload.activations && !from.offload.activations)
      needed += here_.ranks * std::max(0.0, before.rank.activations - after.rank.activations);
    return needed <= kAdvised * folder_.free_bytes;
  }

  int world_size_;
  LocalRanks here_;
  double bytes_;
  OffloadFolder folder_;
};

/// Both, `first` before.
MemoryChange together(MemoryChange first, const MemoryChange& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

} // namespace

std::string memory_remedy(Config config, int world_size, const LocalRanks& here, int64_t free_bytes,
                          std::optional<OffloadFolder> offload) {
  std::vector<std::string> changes;
  const OffloadFolder folder = offload ? *offload : offload_folder(config);
  const Remedies remedies(world_size, here, static_cast<double>(free_bytes), folder);
  const auto enough = [&](const Config& c) { return remedies.enough(c); };
  const auto list = [&] { return fmt::format("{}", fmt::join(changes, " ")); };
  const int dp = parallelize::data_parallel_size(config.parallel, world_size);
  const auto try_micro_batch = [&](const Config& from) {
    const auto n = remedies.smaller_micro_batch(from, remedies.micro_batches(from));
    if (n) changes.push_back(fmt::format("train.micro_batch_size={}", *n));
    return n.has_value();
  };
  if (try_micro_batch(config)) return list();
  // Batches that are prepared ahead take memory, too.
  const double data = plan_memory(config, world_size, here).rank.data * here.ranks;
  const double room = 0.1 * static_cast<double>(free_bytes);
  if (data > room && config.train.step_batch_size_schedule.empty() &&
      config.train.rampup_batch_size.empty()) {
    const double each = static_cast<double>(config.train.global_batch_size) / dp * room / data;
    const auto samples = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(each) | 1));
    config.train.global_batch_size = samples * dp;
    config.train.micro_batch_size = std::min(config.train.micro_batch_size, samples + 1);
    changes.push_back(fmt::format("train.global_batch_size={}", config.train.global_batch_size));
    if (try_micro_batch(config)) return list();
  }
  const std::vector<MemoryChange> same_training =
      changes_of_memory_alone(config, dp * config.parallel.context_parallel_size,
                              leanest_group(config, world_size), folder);
  if (const auto found = remedies.first_enough(config, same_training)) {
    changes = together(changes, *found);
    return list();
  }
  // Only as many tokens as the text has; those of a loaded model and of a corpus are what they are.
  const bool own_model = starts_fresh(config.checkpoint);
  if (own_model) {
    const int64_t vocabulary = config.dataset.type == data::DatasetType::kMock
                                   ? models::ModelConfig{}.vocab_size
                                   : tokenizer_vocabulary(config).value_or(config.model.vocab_size);
    Config to = config;
    to.model.vocab_size = std::min(vocabulary, config.model.vocab_size);
    if (to.model.vocab_size < config.model.vocab_size) {
      changes.push_back(fmt::format("model.vocab_size={}", to.model.vocab_size));
      if (enough(to) || try_micro_batch(to)) return list();
      changes.pop_back();
    }
  }
  for (const MemoryChange& leaner : leaner_optimizers(config)) {
    std::vector<MemoryChange> combinations = {leaner};
    for (const MemoryChange& change : same_training)
      combinations.push_back(together(leaner, change));
    if (const auto found = remedies.first_enough(config, combinations)) {
      changes = together(changes, *found);
      return list();
    }
  }
  // A smaller model, for the smallest microbatch that makes whole batches.
  Config small = config;
  for (int64_t n = 1; n < config.train.micro_batch_size; ++n) {
    config::Violations violations;
    batch_schedule(config.train).check(n, dp, violations, "train.global_batch_size");
    if (!violations.empty()) continue;
    small.train.micro_batch_size = n;
    changes.push_back(fmt::format("train.micro_batch_size={}", n));
    break;
  }
  const auto with_layers = [&](int64_t n) {
    Config c = small;
    c.model.num_layers = n * config.parallel.pipeline_model_parallel_size;
    return c;
  };
  // A list says which layers have experts, and would have to be cut, too.
  const bool listed = config.model.moe_layer_freq.starts_with('[');
  const int64_t layers =
      listed || !own_model
          ? 0
          : largest(config.model.num_layers / config.parallel.pipeline_model_parallel_size,
                    [&](int64_t n) { return enough(with_layers(n)); });
  if (layers > 0) {
    changes.push_back(fmt::format("model.num_layers={}", with_layers(layers).model.num_layers));
    return list();
  }
  // Heads of a size that rotary positions and kernels take.
  const int64_t step = 8 * config.model.num_attention_heads;
  const auto with_hidden = [&](int64_t n) {
    Config c = small;
    c.model.hidden_size = n * step;
    return c;
  };
  const int64_t hidden = own_model ? largest(config.model.hidden_size / step,
                                             [&](int64_t n) { return enough(with_hidden(n)); })
                                   : 0;
  if (hidden > 0) {
    changes.push_back(fmt::format("model.hidden_size={}", with_hidden(hidden).model.hidden_size));
    return list();
  }
  if (const auto length = shorter_sequence(small, enough)) {
    changes.push_back(*length);
    return list();
  }
  return "a smaller model, or more machines";
}

void require_memory(const Config& config, int world_size, const LocalRanks& here,
                    int64_t free_bytes) {
  const auto free = static_cast<double>(free_bytes);
  const MemoryPlan plan = plan_memory(config, world_size, here);
  if (plan.machine <= kTight * free) return;
  if (plan.machine <= kRefused * free) {
    log::warning("the run needs about {} of memory on this machine, which has {} free: it may not "
                 "fit\n  try: {}",
                 format_bytes(plan.machine), format_bytes(free),
                 memory_remedy(config, world_size, here, free_bytes));
    return;
  }
  raise<ConfigError>("the run needs about {} of memory on this machine ({} per rank), which has {} "
                     "free\n  try: {}, or train.check_memory=false to start it anyway",
                     format_bytes(plan.machine), format_bytes(plan.rank.total()),
                     format_bytes(free), memory_remedy(config, world_size, here, free_bytes));
}

} // namespace pentatron::trainer
