/// Scores on eval.tasks during a run.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "pentatron/comm/parallel_groups.h"
#include "pentatron/data/tokenizer.h"
#include "pentatron/evaluation/evaluate_tasks.h"
#include "pentatron/parallelize/parallelize.h"
#include "pentatron/trainer/config.h"
#include "pentatron/trainer/metrics/scores.h"

namespace pentatron::trainer {

/// Scores as a run shows them.
struct TaskFigures {
  Scores metrics;    ///< of metrics.jsonl: "eval_TASK_METRIC", and standard errors
  Scores tags;       ///< of TensorBoard: "eval/TASK/METRIC"
  std::string shown; ///< " | TASK METRIC 0.1234" for each
};
TaskFigures task_figures(const std::vector<evaluation::TaskScores>& results);

/// The tasks of a run; their documents are read once.
class RunTasks {
 public:
  /// Without eval.tasks there is nothing to do. Throws what prepare_tasks() does.
  explicit RunTasks(const Config& config);

  /// Whether tasks are scored after this iteration, `last` of the run.
  bool due(int64_t iteration, bool last) const;
  /// `sequence`: tokens of a sample. Collective over the ranks of the run.
  TaskFigures scores(parallelize::ModelView model, const data::Tokenizer& tokenizer,
                     const comm::ParallelGroups& groups, int64_t sequence) const;

 private:
  evaluation::EvalConfig config_;
  std::string tokenizer_path_;
  evaluation::PreparedTasks tasks_;
};

} // namespace pentatron::trainer
