/// The data about a run that experiment trackers (W&B, MLflow) receive.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "pentatron/base/json.h"
#include "pentatron/trainer/metrics/train_log.h"

namespace pentatron::trainer {

struct TrackedRun {
  std::string id;                                   ///< of the tracker: letters and digits
  std::string name;                                 ///< as people call it
  std::string group;                                ///< W&B's project, MLflow's experiment
  std::vector<std::pair<std::string, Json>> config; ///< "model.num_layers" -> 24
  int64_t resumed_iteration = 0;
};

using TrackedValues = std::vector<std::pair<std::string, double>>;

/// The values of a step that are known, under the names of metrics.jsonl.
TrackedValues tracked_values(const TrainLog& log);

/// Values of configuration keys as YAML spells them: numbers, booleans, lists and text.
Json tracked_value(const std::string& yaml);

} // namespace pentatron::trainer
