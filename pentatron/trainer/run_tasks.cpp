#include "pentatron/trainer/run_tasks.h"

#include <fmt/format.h>

namespace pentatron::trainer {

TaskFigures task_figures(const std::vector<evaluation::TaskScores>& results) {
  TaskFigures figures;
  for (const evaluation::TaskScores& task : results) {
    for (const evaluation::Score& score : task.scores) {
      figures.metrics.emplace_back(fmt::format("eval_{}_{}", task.task, score.name()), score.value);
      if (score.stderr_)
        figures.metrics.emplace_back(fmt::format("eval_{}_{}", task.task, score.stderr_name()),
                                     *score.stderr_);
      figures.tags.emplace_back(fmt::format("eval/{}/{}", task.task, score.name()), score.value);
      figures.shown += fmt::format(" | {} {} {:.4f}", task.task, score.name(), score.value);
    }
  }
  return figures;
}

RunTasks::RunTasks(const Config& config)
    : config_(config.eval), tokenizer_path_(config.tokenizer.path) {
  if (!config_.tasks.empty()) tasks_ = evaluation::prepare_tasks(config_.tasks, config_);
}

bool RunTasks::due(int64_t iteration, bool last) const {
  if (tasks_.tasks.empty()) return false;
  return last || (config_.interval > 0 && iteration % config_.interval == 0);
}

TaskFigures RunTasks::scores(parallelize::ModelView model, const data::Tokenizer& tokenizer,
                             const comm::ParallelGroups& groups, int64_t sequence) const {
  return task_figures(
      evaluation::evaluate_tasks(std::move(model), tokenizer,
                                 evaluation::text_ends(tokenizer, tokenizer_path_), tasks_, config_,
                                 {.max_length = config_.max_length.value_or(sequence),
                                  .dp = groups.dp(),
                                  .generate_together = true,
                                  .progress = {}}));
}

} // namespace pentatron::trainer
