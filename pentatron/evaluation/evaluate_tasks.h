/// Scores of a model on tasks.
#pragma once

#include <string>
#include <vector>

#include "pentatron/comm/group.h"
#include "pentatron/data/tokenizer.h"
#include "pentatron/evaluation/config.h"
#include "pentatron/evaluation/tasks/report.h"
#include "pentatron/parallelize/parallelize.h"

namespace pentatron::evaluation {

/// Tokens at the ends of texts, from the tokenizer's files.
struct TextEnds {
  int64_t prefix = -1;       ///< token put before texts without a context; -1: none
  std::string prefix_text;   ///< a text that begins so gets no more special tokens
  std::vector<int64_t> stop; ///< ends generated texts
};
/// bos_token, else eos_token, of the files at `tokenizer_path`, else the tokenizer's end of
/// document.
TextEnds text_ends(const data::Tokenizer& tokenizer, const std::filesystem::path& tokenizer_path,
                   std::vector<int64_t> stop = {});

/// Tasks with their documents read and their prompts built.
struct PreparedTask {
  Task task;
  std::vector<Item> items;
  int64_t num_fewshot = 0;
};
struct PreparedTasks {
  std::vector<PreparedTask> tasks;
  std::vector<Group> groups;
};
/// Throws ConfigError or DataError for what is wrong with the tasks or their data.
PreparedTasks prepare_tasks(const std::vector<std::string>& names, const EvalConfig& config);

struct EvaluationOptions {
  int64_t max_length = 0; ///< tokens of a text that the model sees at most
  comm::Group dp;         ///< ranks with copies of the model, which share the work
  /// Ranks of `dp` have parts of each other's parameters, so they generate the same texts.
  bool generate_together = false;
  std::string progress; ///< label of a progress line; empty: none
};

/// The scores of the tasks, followed by those of the groups. All ranks of the model and of `dp`
/// call this with the same arguments, and all return the scores. Throws DataError for texts that
/// cannot be scored.
std::vector<TaskScores> evaluate_tasks(parallelize::ModelView model,
                                       const data::Tokenizer& tokenizer, const TextEnds& ends,
                                       const PreparedTasks& tasks, const EvalConfig& config,
                                       const EvaluationOptions& options);

} // namespace pentatron::evaluation
