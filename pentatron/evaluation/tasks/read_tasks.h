/// From task files and names to tasks.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "pentatron/evaluation/tasks/task.h"

namespace pentatron::evaluation {

struct TaskSources {
  /// Paths of task files, and names and tags of those that come with pentatron.
  std::vector<std::string> names;
  /// Where the paths of data begin; empty: at the folder of the task's file, or at the working
  /// directory for tasks that come with pentatron.
  std::string data_path;
};

/// Throws ConfigError or DataError, which name the file and the key, for what is missing, damaged
/// or not supported.
TaskList read_tasks(const TaskSources& sources);

/// The folder of tasks that come with pentatron; empty if it is not there.
std::filesystem::path task_folder();
/// Their names.
std::vector<std::string> task_names();

/// A YAML file as JSON: words without quotes are values (null, true, 3, 0.5) as in YAML 1.1.
/// Anchors, aliases and merge keys (<<) are expanded up to a limit; of a repeated key the last
/// value counts, and a warning names it if `warns`. Tags are refused: a task runs no code.
Document read_task_yaml(std::string_view text, const std::filesystem::path& file,
                        bool warns = true);

} // namespace pentatron::evaluation
