/// Suggestions for a user who gave a folder without a checkpoint.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace pentatron::checkpoint {

/// In logger.dir, the configuration of the run.
inline constexpr const char* kRunConfigName = "config.yaml";

/// Returns the suggestion. If `folder` is the logger.dir of a run: `before` and the path of the
/// run's checkpoint folder. If `folder` has the name of a checkpoint: `before` and the path of each
/// checkpoint next to it. Otherwise: `otherwise`.
std::string meant_checkpoints(const std::filesystem::path& folder, std::string_view before,
                              std::string_view otherwise);

/// What is wrong with it: "does not exist" or "contains no checkpoint".
std::string_view lack_of_checkpoints(const std::filesystem::path& folder);

} // namespace pentatron::checkpoint
