#include "pentatron/trainer/checkpoint_space.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "pentatron/base/format.h"
#include "pentatron/base/free_disk.h"
#include "pentatron/checkpoint/sharded/folders.h"

namespace pentatron::trainer {

namespace {

/// Checkpoints that the run saves, if it does not stop early.
double saves_of(const Config& config) {
  const auto steps = static_cast<double>(total_iterations(config.train));
  double saves = steps > 0 && !config.checkpoint.save.empty() ? 1 : 0;
  for (const int64_t interval : {config.checkpoint.save_interval, config.train.exit_interval})
    if (saves > 0 && interval > 0)
      saves = std::max(saves, std::ceil(steps / static_cast<double>(interval)));
  return saves;
}

/// Checkpoints that are on disk at the same time: an old one is removed after a new one is written.
double most_at_once(const Config& config, int64_t keep) {
  const CheckpointConfig& c = config.checkpoint;
  const double saves = saves_of(config);
  if (keep == 0) return saves;
  double kept = static_cast<double>(keep) + static_cast<double>(c.keep_best);
  if (c.keep_every > 0)
    kept += std::floor(static_cast<double>(total_iterations(config.train)) /
                       static_cast<double>(c.keep_every));
  return std::min(saves, kept + 1);
}

} // namespace

std::string describe_checkpoints(const Config& config, const MemoryPlan& plan) {
  const double count = most_at_once(config, config.checkpoint.keep);
  if (count == 0) return "";
  const std::optional<double> free = free_disk(config.checkpoint.save);
  const std::string each = format_bytes(plan.checkpoint);
  return fmt::format("checkpoints  {} in {}{}",
                     count == 1 ? fmt::format("one of about {}", each)
                                : fmt::format("about {} each, up to {:.0f} at the same time: {}",
                                              each, count, format_bytes(count * plan.checkpoint)),
                     config.checkpoint.save,
                     free ? fmt::format(", which has {} free", format_bytes(*free)) : "");
}

std::string checkpoint_space_warning(const Config& config, const MemoryPlan& plan) {
  const CheckpointConfig& c = config.checkpoint;
  const double count = most_at_once(config, c.keep);
  if (count == 0) return "";
  const std::optional<double> free = free_disk(c.save);
  if (!free) return "";
  const double room =
      *free + static_cast<double>(checkpoint::saved_in(c.save).size()) * plan.checkpoint;
  const double needed = count * plan.checkpoint;
  if (needed <= room) return "";
  const bool fewer_fit = most_at_once(config, 1) * plan.checkpoint <= room;
  return fmt::format("the checkpoints of this run need about {}, and checkpoint.save={} has {} "
                     "free\n  try: checkpoint.save=FOLDER on a larger disk{}",
                     format_bytes(needed), c.save, format_bytes(*free),
                     fewer_fit ? ", or checkpoint.keep=1" : "");
}

} // namespace pentatron::trainer
