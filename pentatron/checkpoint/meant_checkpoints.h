/// Suggestions for a user who gave a folder without a checkpoint.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace pentatron::checkpoint {

/// In logger.dir, the configuration of the run.
inline constexpr const char* kRunConfigName = "config.yaml";

/// What to try: `before` and the path of the run's checkpoint folder, if `folder` is the logger.dir
/// of a run; of each checkpoint beside it, if `folder` has the name of one; else `otherwise`.
std::string meant_checkpoints(const std::filesystem::path& folder, std::string_view before,
                              std::string_view otherwise);

} // namespace pentatron::checkpoint
