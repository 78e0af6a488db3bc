/// The documents of a task's splits.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "pentatron/evaluation/tasks/task.h"

namespace pentatron::evaluation {

using Documents = std::vector<Document>;

/// Makes integers floats where another value of their column is one, also within lists and objects:
/// the columns of Arrow, with which lm-eval reads JSON, have one type.
void unite_numbers(const std::vector<Document*>& values);

/// Reads the files of a split, of which a path may be a pattern (*, ?, [a-c]): JSON Lines or arrays
/// (.gz and .zst too), a list in a JSON object, CSV, or Parquet. Every document has the same
/// fields; those that it lacks are null. Throws DataError, which names the file and the line, for
/// what is missing or damaged.
Documents read_documents(const Task& task, const std::string& split);

} // namespace pentatron::evaluation
