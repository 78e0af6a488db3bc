/// From the keys of a file, includes resolved, to a task or a group.
#pragma once

#include <filesystem>

#include "pentatron/evaluation/tasks/task.h"

namespace pentatron::evaluation {

/// Throws ConfigError, which names `file` and the key, for what is missing, wrong or not supported.
Task parse_task(const Document& value, const std::filesystem::path& file);

/// Without its members. Throws the same.
Group parse_group(const Document& value, const std::filesystem::path& file);

} // namespace pentatron::evaluation
