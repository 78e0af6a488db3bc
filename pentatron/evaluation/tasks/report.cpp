#include "pentatron/evaluation/tasks/report.h"

#include <algorithm>
#include <array>
#include <cmath>

#include <fmt/format.h>

namespace pentatron::evaluation {

namespace {

constexpr size_t kColumns = 6;
using Row = std::array<std::string, kColumns>;

Document number_or_null(double value) {
  return std::isfinite(value) ? Document(value) : Document(nullptr);
}

/// A perplexity may be huge.
std::string shown(double value) {
  return std::abs(value) < 1e9 ? fmt::format("{:.4f}", value) : fmt::format("{:.4e}", value);
}

} // namespace

std::string score_table(const std::vector<TaskScores>& results) {
  std::vector<Row> rows = {{"task", "filter", "shots", "metric", "value", "stderr"}};
  for (const TaskScores& task : results) {
    std::string name = task.task;
    for (const Score& score : task.scores) {
      rows.push_back({name, score.filter, task.is_group ? "" : fmt::format("{}", task.num_fewshot),
                      score.metric, shown(score.value),
                      score.stderr_ ? shown(*score.stderr_) : "-"});
      name.clear();
    }
  }
  std::array<size_t, kColumns> widths{};
  for (const Row& row : rows)
    for (size_t i = 0; i < kColumns; ++i) widths[i] = std::max(widths[i], row[i].size());
  std::string text;
  for (const Row& row : rows) {
    std::string line;
    for (size_t i = 0; i < kColumns; ++i) {
      const bool number = i == 2 || i >= 4;
      line += number ? fmt::format("{:>{}}  ", row[i], widths[i])
                     : fmt::format("{:<{}}  ", row[i], widths[i]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

Document score_json(const std::vector<TaskScores>& results, Document more) {
  Document scores = Document::object(), items = Document::object();
  for (const TaskScores& task : results) {
    Document& of_task = scores[task.task] = Document::object();
    for (const Score& score : task.scores) {
      of_task[score.name()] = number_or_null(score.value);
      if (score.stderr_) of_task[score.stderr_name()] = number_or_null(*score.stderr_);
    }
    if (!task.is_group) items[task.task] = task.items;
  }
  more["scores"] = std::move(scores);
  more["items"] = std::move(items);
  return more;
}

} // namespace pentatron::evaluation
