/// The name of a run, and the hash of its configuration.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "pentatron/trainer/config.h"
#include "pentatron/trainer/metrics/tracked.h"

namespace pentatron::trainer {

/// logger.run_name, or the name of logger.dir.
std::string name_of_run(const LoggerConfig& logger);

/// Of the fields that change the training (all but OnResume::kIgnored), and of the model that it
/// started from.
std::string hash_of_config(const Config& config, const std::string& started_from);

/// The checkpoint attachment that names the model from which the run started.
inline constexpr const char* kStartedFrom = "started_from.txt";
/// Its content: a path, or empty for a run that began with new weights.
std::string started_from(const std::filesystem::path& folder);
/// Returns started_from() if that model exists and is not `model` (a folder, a file or ORG/NAME of
/// a downloaded model), or if the run began with new weights; otherwise nothing. Throws
/// CheckpointError if `model` does not exist.
std::optional<std::string> started_from_another(const std::filesystem::path& folder,
                                                const std::string& model);

/// For W&B and MLflow.
TrackedRun tracked_run(const Config& config, const std::string& id, std::string group,
                       int64_t resumed);

} // namespace pentatron::trainer
