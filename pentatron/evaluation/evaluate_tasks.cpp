#include "pentatron/evaluation/evaluate_tasks.h"

#include <algorithm>

#include "pentatron/base/error.h"
#include "pentatron/base/format.h"
#include "pentatron/base/log.h"
#include "pentatron/base/progress.h"
#include "pentatron/data/tokenizer/open.h"
#include "pentatron/evaluation/generate_answers.h"
#include "pentatron/evaluation/score_tokens.h"
#include "pentatron/evaluation/tasks/read_tasks.h"
#include "pentatron/evaluation/tokenize_requests.h"

namespace pentatron::evaluation {

namespace {

/// A progress line with the time that is left.
class Counter {
 public:
  Counter(const std::string& label, int64_t total) : total_(total), begin_s_(monotonic_s()) {
    if (!label.empty() && log::on_console()) progress_.emplace(label, total);
  }
  void done(int64_t count) {
    if (!progress_) return;
    const double passed = monotonic_s() - begin_s_;
    const double left = passed * static_cast<double>(total_ - count) /
                        static_cast<double>(std::max<int64_t>(1, count));
    progress_->update(count, fmt::format("{:.0f} s left", left));
  }

 private:
  int64_t total_;
  double begin_s_;
  std::optional<Progress> progress_;
};

} // namespace

TextEnds text_ends(const data::Tokenizer& tokenizer, const std::filesystem::path& tokenizer_path,
                   std::vector<int64_t> stop) {
  TextEnds ends{.prefix = tokenizer.eod(), .prefix_text = {}, .stop = std::move(stop)};
  if (tokenizer.eod() >= 0) ends.stop.push_back(tokenizer.eod());
  if (tokenizer_path.empty()) return ends;
  for (const char* name : {"eos_token", "bos_token"}) { // the last one that is there counts
    const std::string text = data::tokenizer::configured_token(tokenizer_path, name);
    if (const auto id = tokenizer.token_id(text); !text.empty() && id) {
      ends.prefix = *id;
      ends.prefix_text = text;
    }
  }
  return ends;
}

PreparedTasks prepare_tasks(const std::vector<std::string>& names, const EvalConfig& config) {
  TaskList list = read_tasks({.names = names, .data_path = config.data_path});
  PreparedTasks prepared{.tasks = {}, .groups = std::move(list.groups)};
  const RequestOptions options{
      .limit = config.limit, .num_fewshot = config.num_fewshot, .seed = config.seed};
  for (Task& task : list.tasks) {
    std::vector<Item> items = make_items(task, options);
    check_targets(task, items);
    check_filters(task, items);
    const int64_t shots = shown_examples(task, options);
    prepared.tasks.push_back(
        {.task = std::move(task), .items = std::move(items), .num_fewshot = shots});
  }
  return prepared;
}

std::vector<TaskScores> evaluate_tasks(parallelize::ModelView model,
                                       const data::Tokenizer& tokenizer, const TextEnds& ends,
                                       const PreparedTasks& tasks, const EvalConfig& config,
                                       const EvaluationOptions& options) {
  using Answers = std::vector<std::vector<Answer>>; // of a task, by item
  std::vector<Answers> answers(tasks.tasks.size());
  std::vector<ScoredTokens> sequences;
  std::vector<Answer*> places;
  std::vector<Prompt> prompts;
  for (size_t t = 0; t < tasks.tasks.size(); ++t) {
    const PreparedTask& task = tasks.tasks[t];
    RequestTokens tokens(tokenizer, ends, options.max_length, task.task.name);
    for (const Item& item : task.items) answers[t].emplace_back(item.requests.size());
    for (size_t i = 0; i < task.items.size(); ++i) {
      for (size_t r = 0; r < task.items[i].requests.size(); ++r) {
        const Request& request = task.items[i].requests[r];
        Answer& answer = answers[t][i][r];
        answer.greedy = true;
        if (request.kind == Request::Kind::kGenerate) {
          prompts.push_back({.tokens = tokens.prompt(request, task.task.generation.max_gen_toks),
                             .generation = &task.task.generation,
                             .answer = &answer});
          continue;
        }
        for (ScoredTokens& sequence : tokens.scored(request)) {
          answer.tokens += sequence.predicted;
          sequences.push_back(std::move(sequence));
          places.push_back(&answer);
        }
      }
    }
  }
  {
    Counter counter(options.progress, std::ssize(sequences));
    const std::vector<TokenScore> scores = score_tokens(
        model, sequences,
        {.batch_tokens = config.batch_tokens, .dp = options.dp, .done = [&](int64_t count) {
           counter.done(count);
         }});
    for (size_t i = 0; i < scores.size(); ++i) {
      places[i]->loglikelihood += scores[i].loglikelihood;
      places[i]->greedy = places[i]->greedy && scores[i].greedy;
    }
  }
  if (!prompts.empty()) {
    Counter counter(options.progress, std::ssize(prompts));
    generate_answers(model, tokenizer, ends, prompts,
                     {.max_length = options.max_length,
                      .batch_tokens = config.batch_tokens,
                      .dp = options.dp,
                      .together = options.generate_together,
                      .done = [&](int64_t count) { counter.done(count); }});
  }
  std::vector<TaskScores> results;
  for (size_t t = 0; t < tasks.tasks.size(); ++t) {
    results.push_back(
        score_items(tasks.tasks[t].task, tasks.tasks[t].items, answers[t], config.bootstrap_iters));
    results.back().num_fewshot = tasks.tasks[t].num_fewshot;
  }
  std::vector<TaskScores> groups = score_groups(tasks.groups, results);
  std::ranges::move(groups, std::back_inserter(results));
  return results;
}

} // namespace pentatron::evaluation
