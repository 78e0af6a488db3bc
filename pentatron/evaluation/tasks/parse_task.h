/// From the keys of a file, includes resolved, to a task or a group.
#pragma once

#include <filesystem>

#include "pentatron/evaluation/tasks/task.h"

namespace pentatron::evaluation {

/// Throws ConfigError, which names `file` and the key, for what is missing, wrong or not supported.
Task parse_task(const Document& value, const std::filesystem::path& file);

/// Without its members. Keys that are none of a group are added to `of_tasks`: they replace those
/// of its tasks. Throws the same.
Group parse_group(const Document& value, const std::filesystem::path& file, Document& of_tasks);

/// Whether a path of data is an address on the network.
bool is_url(std::string_view path);

} // namespace pentatron::evaluation
