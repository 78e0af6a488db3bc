/// The name of a run, and the hash of its configuration.
#pragma once

#include <string>

#include "pentatron/trainer/config.h"
#include "pentatron/trainer/metrics/tracked.h"

namespace pentatron::trainer {

/// logger.run_name, or the name of logger.dir.
std::string name_of_run(const LoggerConfig& logger);

/// Of the configuration, without where the run writes and how it is shown, and of the model that it
/// started from.
std::string hash_of_config(Config config, const std::string& started_from);

/// For W&B and MLflow.
TrackedRun tracked_run(const Config& config, const std::string& id, std::string group,
                       int64_t resumed);

} // namespace pentatron::trainer
