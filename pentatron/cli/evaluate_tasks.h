/// evaluate --tasks.
#pragma once

#include <string>
#include <vector>

#include "pentatron/cli/ranks.h"

namespace pentatron::cli {

struct TaskArguments {
  std::vector<std::string> tasks;
  std::string out;
  bool overwrite = false;
  RankArguments ranks;
};
void add_task_options(CLI::App& verb, TaskArguments& arguments);

/// Returns the exit status.
int evaluate_on_tasks(const std::string& model, const std::vector<std::string>& config,
                      const TaskArguments& arguments);

} // namespace pentatron::cli
