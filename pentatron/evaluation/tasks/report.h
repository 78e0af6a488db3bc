/// Scores as a table for people and as JSON.
#pragma once

#include <string>
#include <vector>

#include "pentatron/evaluation/tasks/scores.h"

namespace pentatron::evaluation {

/// A line for each score: task, filter, number of examples shown, metric, value, standard error.
std::string score_table(const std::vector<TaskScores>& results);

/// {"scores": {task: {metric: value}}, "items": {task: [...]}} and `more` keys before them.
Document score_json(const std::vector<TaskScores>& results, Document more = Document::object());

} // namespace pentatron::evaluation
