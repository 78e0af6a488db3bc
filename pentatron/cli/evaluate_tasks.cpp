#include "pentatron/cli/evaluate_tasks.h"

#include <CLI/CLI.hpp>

#include <fmt/format.h>

#include "pentatron/base/atomic_file.h"
#include "pentatron/base/error.h"
#include "pentatron/base/hf_cache.h"
#include "pentatron/base/naming.h"
#include "pentatron/cli/commands.h"
#include "pentatron/cli/loaded_model.h"
#include "pentatron/evaluation/evaluate_tasks.h"
#include "pentatron/models/model.h"

namespace pentatron::cli {

namespace {

void check_model(const std::string& where, const OpenedModel& opened) {
  const models::ModelSpec spec = models::model_spec(opened.config.model);
  if (spec.generates == models::Generates::kContinuation) return;
  const bool judges = spec.scores != models::SampleScores::kNone;
  raise<ConfigError>(
      "{} is a model of type {}, but --tasks needs one that predicts the next token\n"
      "  try: {}",
      where, config::to_string(opened.config.model.type),
      judges ? "--file FILE.jsonl with labels" : "--batches FILE");
}

int64_t max_length_of(const trainer::Config& config) {
  const int64_t context = config.train.seq_length; // of the model
  const int64_t most = std::min(context, config.model.longest_sequence().value_or(context));
  const int64_t asked = config.eval.max_length.value_or(most);
  if (asked > most)
    raise<ConfigError>("eval.max_length={} is more than the model's context of {} tokens\n  try: "
                       "eval.max_length={}",
                       asked, most, most);
  return asked;
}

evaluation::Document facts_of(const std::string& model, const trainer::Config& config,
                              int64_t max_length) {
  evaluation::Document facts = {{"model", model},
                                {"dtype", config::to_string(config.dtype)},
                                {"max_length", max_length},
                                {"limit", config.eval.limit}};
  if (config.eval.num_fewshot) facts["num_fewshot"] = *config.eval.num_fewshot;
  return {{"settings", facts}};
}

} // namespace

void add_task_options(CLI::App& verb, TaskArguments& arguments) {
  CLI::Option* tasks =
      verb.add_option("--tasks", arguments.tasks,
                      "tasks to score, separated by commas: names of built-in tasks (hellaswag, "
                      "mmlu, ...) and task files (YAML, in the format of lm-evaluation-harness)")
          ->delimiter(',')
          ->allow_extra_args(false);
  verb.add_option("--out", arguments.out,
                  "with --tasks: write the scores, and the likelihoods and answers of each "
                  "document, to this JSON file")
      ->needs(tasks);
  add_rank_options(verb, arguments.ranks);
  verb.get_option("--ranks")->needs(tasks);
  verb.get_option("--backend")->needs(tasks);
}

int evaluate_on_tasks(const std::string& model, const std::vector<std::string>& config,
                      const TaskArguments& arguments) {
  const Ranks ranks = find_ranks(arguments.ranks);
  const OpenedModel opened =
      open_trained_model(model, config, ranks.size, {.keys = {"eval."}, .copies = true});
  const trainer::Config& settings = opened.config;
  if (!settings.eval.tasks.empty())
    throw ConfigError(
        "eval.tasks is for training; this command uses --tasks\n  try: remove eval.tasks");
  check_model(model, opened);
  const int64_t max_length = max_length_of(settings);
  const auto tokenizer = open_tokenizer_of(opened);
  if (tokenizer == nullptr)
    raise<ConfigError>("{} has no tokenizer, which --tasks needs\n  try: {}", model,
                       download_or(opened.source->facts().path, kGivenTokenizer));
  const evaluation::PreparedTasks tasks = [&] {
    const OneVoice voice(ranks);
    return evaluation::prepare_tasks(arguments.tasks, settings.eval);
  }();
  const evaluation::TextEnds ends = evaluation::text_ends(*tokenizer, tokenizer_path(opened),
                                                          opened.source->facts().generation.eos);
  return run_ranks(ranks, settings, [&](const comm::Group& world) {
    const RankLog rank_log("", world);
    LoadedModel loaded = load_model_in_groups(opened, world);
    const bool experts = settings.parallel.expert_model_parallel_size > 1;
    const std::vector<evaluation::TaskScores> scores =
        evaluation::evaluate_tasks(loaded.model, *tokenizer, ends, tasks, settings.eval,
                                   {.max_length = max_length,
                                    .dp = loaded.groups.dp(),
                                    .generate_together = experts,
                                    .progress = "evaluate"});
    if (world.rank() != 0) return;
    fmt::print("{}", evaluation::score_table(scores));
    if (arguments.out.empty()) return;
    const evaluation::Document json =
        evaluation::score_json(scores, facts_of(model, settings, max_length));
    naming(
        "--out ", arguments.out,
        [&] {
          AtomicFile file(arguments.out);
          file.write(json.dump(1, ' ', false, evaluation::Document::error_handler_t::replace) +
                     "\n");
          file.commit(arguments.overwrite ? Existing::kReplace : Existing::kRefuse);
        },
        "a file in another folder");
  });
}

} // namespace pentatron::cli
