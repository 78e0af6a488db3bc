/// From a model's answers to scores, as lm-eval 0.4 counts them.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "pentatron/evaluation/tasks/requests.h"

namespace pentatron::evaluation {

/// A model's response to a request.
struct Answer {
  double loglikelihood = 0;
  bool greedy = false; ///< each token of the continuation is the likeliest one
  int64_t tokens = 0;  ///< of the continuation
  std::string text;    ///< of kGenerate
};

/// What a document adds to a metric: a number; for f1 and mcc the label and the prediction; for
/// weighted means the value and its weight.
struct MetricValue {
  double value = 0, second = 0;
};

struct Score {
  std::string metric;
  std::string filter = "none";
  double value = 0;
  std::optional<double> stderr_; ///< of the value; none where it is not known
  bool higher_is_better = true;

  /// "acc", or with the filter: "exact_match,strict-match".
  std::string name() const;
  /// "acc_stderr".
  std::string stderr_name() const;
};

struct TaskScores {
  std::string task, alias;
  int64_t samples = 0, num_fewshot = 0;
  std::vector<Score> scores;
  Document items = Document::array(); ///< what was asked and answered, document by document
  bool is_group = false;
};

/// The text that a filter leaves of an answer to `document`, whose choices multi_choice_regex
/// reads.
std::string filtered(const FilterSpec& filter, const std::string& text, const Document& document);

/// `answers[i][j]`: to request j of item i. `bootstrap_iters`: of standard errors that have no
/// formula; 0: no standard errors.
TaskScores score_items(const Task& task, const std::vector<Item>& items,
                       const std::vector<std::vector<Answer>>& answers, int64_t bootstrap_iters);

/// Throws DataError for documents without the choices that multi_choice_regex reads.
void check_filters(const Task& task, const std::vector<Item>& items);

/// Throws DataError for multiple choice where a document has no target, or the target of no
/// document is one of its choices: then doc_to_target names something else; and for f1 of more than
/// two labels.
void check_targets(const Task& task, const std::vector<Item>& items);

/// The scores of the groups, from those of their members.
std::vector<TaskScores> score_groups(const std::vector<Group>& groups,
                                     const std::vector<TaskScores>& tasks);

/// A statistic of all documents' values.
double aggregate(Aggregation aggregation, const std::vector<MetricValue>& values);
/// Its standard error: computed with the formula for a mean, otherwise from resampled values;
/// nothing if neither applies.
std::optional<double> standard_error(Aggregation aggregation,
                                     const std::vector<MetricValue>& values,
                                     int64_t bootstrap_iters);

} // namespace pentatron::evaluation
