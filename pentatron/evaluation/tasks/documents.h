/// The documents of a task's splits.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "pentatron/evaluation/tasks/task.h"

namespace pentatron::evaluation {

using Documents = std::vector<Document>;

/// Reads the files of a split: JSON Lines or arrays (.gz and .zst too), CSV, or Parquet. Every
/// document has the same fields; those that it lacks are null. Throws DataError, which names the
/// file and the line, for what is missing or damaged.
Documents read_documents(const Task& task, const std::string& split);

/// The rows of a CSV text (RFC 4180), with the cells as texts. `names`: of the columns; empty: the
/// first row has them. Throws DataError, which names `where` and the line.
Documents parse_csv(std::string_view text, const std::vector<std::string>& names, char delimiter,
                    std::string_view where);

} // namespace pentatron::evaluation
