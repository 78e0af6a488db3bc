#include <CLI/CLI.hpp>

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "pentatron/base/error.h"
#include "pentatron/base/hf_cache.h"
#include "pentatron/base/json.h"
#include "pentatron/base/mapped_file.h"
#include "pentatron/base/naming.h"
#include "pentatron/base/paths.h"
#include "pentatron/checkpoint/read_model.h"
#include "pentatron/cli/commands.h"
#include "pentatron/cli/evaluate_tasks.h"
#include "pentatron/cli/loaded_model.h"
#include "pentatron/cli/text_documents.h"
#include "pentatron/data/input_files.h"
#include "pentatron/models/model.h"
#include "pentatron/trainer/evaluate_hf.h"
#include "pentatron/trainer/kernel_choice.h"
#include "pentatron/trainer/metrics/train_log.h"
#include "pentatron/trainer/runtime.h"
#include "pentatron/trainer/score_labels.h"
#include "pentatron/trainer/score_text.h"

namespace pentatron::cli {

namespace {

struct EvaluateArguments {
  std::string positional, model, adapter, batches, logits_out, grads_out, hidden_out;
  TaskArguments tasks;
  std::optional<std::string> text, text_key, text_pair_key, label_key;
  std::vector<std::string> files, config;
  bool overwrite = false;
  trainer::TextScoring scoring;
};

/// The model may be named by its place or by --hf; key=value settings may come first.
void find_model(EvaluateArguments& a) {
  if (a.positional.empty()) return;
  if (a.model.empty()) {
    a.model = a.positional;
  } else if (!split_arguments({a.positional}).overrides.empty()) {
    a.config.insert(a.config.begin(), a.positional);
  } else {
    raise<ConfigError>("{} and --hf {} both name a model, but evaluate takes one\n  try: pentatron "
                       "evaluate {}",
                       a.positional, a.model, a.positional);
  }
}

/// Exactly one of --batches, --text, --file and --tasks, and no option of another one.
void check_inputs(const EvaluateArguments& a) {
  std::vector<std::string> given;
  if (!a.batches.empty()) given.emplace_back("--batches");
  if (a.text) given.emplace_back("--text");
  if (!a.files.empty()) given.emplace_back("--file");
  if (!a.tasks.tasks.empty()) given.emplace_back("--tasks");
  if (given.empty())
    throw ConfigError("evaluate needs one of --batches, --text, --file and --tasks, but none is "
                      "given\n  try: --text \"It is a truth universally acknowledged\"");
  if (given.size() > 1)
    raise<ConfigError>("{} are given, but evaluate takes only one of --batches, --text, --file and "
                       "--tasks\n  try: only {}",
                       fmt::join(given, " and "), given.back());
  if (a.batches.empty() && (!a.logits_out.empty() || !a.grads_out.empty()))
    raise<ConfigError>("{} can only be used with --batches, not with {}\n  try: --batches "
                       "batch.safetensors",
                       a.logits_out.empty() ? "--grads-out" : "--logits-out", given[0]);
  if ((!a.files.empty() || !a.tasks.tasks.empty()) && !a.hidden_out.empty())
    raise<ConfigError>("--hidden-out can only be used with --batches or --text, not with {}\n  "
                       "try: --text \"It is a truth universally acknowledged\"",
                       given[0]);
  if ((!a.batches.empty() || !a.tasks.tasks.empty()) &&
      (a.scoring.context > 0 || a.scoring.stride > 0))
    raise<ConfigError>("{} can only be used with --text or --file, not with {}\n  try: {}",
                       a.scoring.context > 0 ? "--context" : "--stride", given[0],
                       a.batches.empty() ? "eval.max_length=1024" : "--file text.txt");
}

/// Outputs that exist are replaced only when that is asked.
void check_outputs(const EvaluateArguments& a) {
  if (!a.tasks.out.empty()) require_folder_of(a.tasks.out, "--out", ".json");
  if (a.overwrite) {
    if (a.logits_out.empty() && a.grads_out.empty() && a.hidden_out.empty() && a.tasks.out.empty())
      throw ConfigError("--overwrite has no effect without an output file\n  try: remove "
                        "--overwrite");
    if (a.tasks.out.empty()) return;
    const std::vector<std::filesystem::path> inputs(a.tasks.tasks.begin(), a.tasks.tasks.end());
    return check_replaced(a.tasks.out, inputs, "--out", "a file of scores",
                          [](const std::filesystem::path& file) {
                            try {
                              const Json json = parse_json(MappedFile(file).text(), file.string());
                              return json.contains("scores") && json.contains("items");
                            } catch (const Error&) {
                              return false;
                            }
                          });
  }
  for (const auto& [option, file] : {std::pair{"--logits-out", a.logits_out},
                                     {"--grads-out", a.grads_out},
                                     {"--out", a.tasks.out},
                                     {"--hidden-out", a.hidden_out}})
    if (std::error_code error;
        !file.empty() && std::filesystem::exists(std::filesystem::symlink_status(file, error)))
      raise<ConfigError>("{} {} exists\n  try: another {}, or --overwrite if an earlier evaluate "
                         "wrote it",
                         option, file, option);
}

void print_score(const trainer::TextScore& score) {
  if (score.tokens == 0) throw DataError("the text has no token to predict\n  try: a longer text");
  const std::string bytes = score.bytes_known ? std::to_string(score.bytes) : "null";
  const bool known = score.bytes_known && score.bytes > 0;
  const std::string bits = known ? trainer::exact_text(score.bits_per_byte()) : "null";
  fmt::print("{{\"loss\":{},\"perplexity\":{},\"bits_per_byte\":{},\"tokens\":{},\"bytes\":{},"
             "\"documents\":{}}}\n",
             trainer::exact_text(score.loss()),
             trainer::exact_text(trainer::perplexity(score.loss())), bits, score.tokens, bytes,
             score.documents);
}

void print_figures(const trainer::Evaluation& evaluation, const std::string& more = "") {
  fmt::print("{{\"loss\":{}", evaluation.loss ? trainer::json_text(*evaluation.loss) : "null");
  for (const auto& [name, value] : evaluation.figures)
    fmt::print(",\"{}\":{}", name, trainer::json_text(value));
  fmt::print("{}}}\n", more);
}

/// One batch as transformers' forward pass takes it.
trainer::HfEvaluation pass_over(const EvaluateArguments& a) {
  return {.model = a.model,
          .batches = a.batches,
          .tokens = {},
          .logits_out = a.logits_out,
          .grads_out = a.grads_out,
          .hidden_out = a.hidden_out};
}

std::unique_ptr<checkpoint::ModelSource> open_for(const EvaluateArguments& a) {
  return checkpoint::open_model(a.model, pass_over(a).purpose());
}

void evaluate_batch(const EvaluateArguments& a, const trainer::Config& config,
                    std::vector<int32_t> tokens) {
  trainer::HfEvaluation batch = pass_over(a);
  batch.tokens = std::move(tokens);
  batch.dtype = config.dtype;
  batch.device = config.device;
  batch.num_threads = config.train.num_threads;
  const std::optional<trainer::Evaluation> result = trainer::evaluate_hf(batch);
  if (!result) {
    if (a.logits_out.empty() && a.hidden_out.empty())
      raise<DataError>("{} gives no loss, because it lacks labels, or the model has no output "
                       "layer\n  try: --hidden-out hidden.safetensors",
                       a.batches);
    if (!a.batches.empty() && trainer::gives_loss(*open_for(a))) fmt::print("{{\"loss\":null}}\n");
    return;
  }
  print_figures(*result);
}

/// Files of texts with a label each, as the run that trained the model read them.
void evaluate_labels(const EvaluateArguments& a, const trainer::Config& config,
                     const OpenedModel& opened) {
  if (a.scoring.stride > 0)
    raise<ConfigError>("--stride {} has no effect on {}, which reads each text once\n  try: remove "
                       "--stride",
                       a.scoring.stride, a.model);
  data::find_input_files(a.files, "--file"); // or says what is missing
  data::DatasetConfig dataset = saved_config(opened.source->facts()).dataset;
  dataset.type = data::DatasetType::kClassification;
  dataset.path = fmt::format("{}", fmt::join(a.files, ","));
  dataset.split = "0,1,0";
  dataset.on_bad_input = data::OnBadInput::kError;
  if (a.text_key) dataset.text_key = *a.text_key;
  if (a.text_pair_key) dataset.text_pair_key = *a.text_pair_key;
  if (a.label_key) dataset.label_key = *a.label_key;
  std::optional<trainer::LabelScore> score;
  const auto read = [&](checkpoint::ModelSource& source) {
    try {
      score = trainer::score_labels(
          source, open_plain_tokenizer(opened), dataset,
          {.dtype = config.dtype, .device = config.device, .context = a.scoring.context});
    } catch (const data::BadInputError& bad) {
      throw data::BadInputError(bad.input(), remedy_in_documents(bad.input(), false));
    }
  };
  checkpoint::read_model(a.model, opened.source->facts().path, {}, read);
  print_figures(score->evaluation, fmt::format(",\"samples\":{}", score->samples));
}

void evaluate_text(const EvaluateArguments& a, const trainer::Config& config) {
  OpenedModel opened{.where = a.model, .source = open_for(a), .config = config};
  const auto tokenizer = open_tokenizer_of(opened);
  if (tokenizer == nullptr)
    raise<ConfigError>("{} has no tokenizer, which {} needs\n  try: {}", a.model,
                       a.text ? "--text" : "--file",
                       download_or(opened.source->facts().path, kGivenTokenizer));
  if (!a.hidden_out.empty()) {
    std::vector<int32_t> tokens;
    tokenizer->encode_with_special(*a.text, tokens);
    if (tokens.empty()) throw DataError("the text has no tokens\n  try: a longer text");
    return evaluate_batch(a, config, std::move(tokens));
  }
  const models::ModelSpec spec = models::model_spec(opened.source->config());
  const bool judges = spec.scores != models::SampleScores::kNone;
  if (judges && !a.text) return evaluate_labels(a, config, opened);
  for (const auto& [flag, key] :
       {std::pair{"--label-key", a.label_key}, {"--text-pair-key", a.text_pair_key}})
    if (key)
      raise<ConfigError>("{} {} has no effect on {}, which predicts no labels\n  try: remove {}",
                         flag, *key, a.model, flag);
  if (spec.generates != models::Generates::kContinuation)
    raise<ConfigError>("{} is a model of type {}, which does not predict the next token\n  try: "
                       "--hidden-out hidden.safetensors, or {} with labels",
                       a.model, config::to_string(opened.source->config().type),
                       judges ? "--file FILE.jsonl" : "--batches FILE");
  trainer::TextScoring scoring = a.scoring;
  scoring.dtype = config.dtype;
  scoring.device = config.device;
  std::optional<trainer::TextScorer> scorer;
  checkpoint::read_model(
      a.model, opened.source->facts().path, {},
      [&](checkpoint::ModelSource& source) { scorer.emplace(source, *tokenizer, scoring); });
  if (a.text) {
    scorer->add(*a.text);
  } else {
    for_each_document(a.files, "--file", a.text_key.value_or("text"),
                      [&](std::string_view text, const std::function<void(double)>& done) {
                        scorer->add(text, done);
                      });
  }
  print_score(scorer->finish());
}

int evaluate(EvaluateArguments& a) {
  find_model(a);
  if (a.model.empty())
    throw ConfigError("evaluate needs a model, but none is given\n  try: pentatron evaluate DIR "
                      "--text \"It is a truth universally acknowledged\"");
  check_inputs(a);
  check_outputs(a);
  if (a.positional.empty()) naming("--hf ", a.model, [&] { open_for(a); });
  a.model = with_adapter(a.model, a.adapter);
  a.tasks.overwrite = a.overwrite;
  if (!a.tasks.tasks.empty()) return evaluate_on_tasks(a.model, a.config, a.tasks);
  std::vector<std::string> keys;
  trainer::Config base;
  if (a.batches.empty()) {
    keys.emplace_back("tokenizer.path");
    const auto source = open_for(a);
    // So that no tokenizer decides its vocabulary; the keys of a run must have a loss.
    base.model = source->config().without_mtp().with_loss();
    base.train.seq_length = source->facts().context;
    base.dataset.type = data::DatasetType::kBatches; // of any model; none is read
  }
  const trainer::Config config = with_runtime_keys(a.config, base, keys);
  trainer::set_compute_threads(config.train.num_threads);
  trainer::choose_kernels_quietly(config, trainer::choose_device(config.device), {});
  if (a.batches.empty()) {
    evaluate_text(a, config);
    return 0;
  }
  evaluate_batch(a, config, {});
  return 0;
}

} // namespace

void add_evaluate(CLI::App& program, Action& chosen) {
  auto a = std::make_shared<EvaluateArguments>();
  CLI::App* verb =
      program.add_subcommand("evaluate", "measure how well a model predicts a text or a batch");
  verb->add_option("model", a->positional, kModelHelp);
  verb->add_option("--hf,--model", a->model, "the same as the first argument");
  verb->add_option("--adapter", a->adapter, kAdapterHelp);
  verb->add_option("--text", a->text, "text to evaluate");
  verb->add_option("--file", a->files,
                   "file or folder of text to evaluate, with labels for a classification or "
                   "regression model: .txt, .md, .jsonl (one object per line), .json (JSON Lines "
                   "or an array of objects), .tsv (column names in the first line), each also as "
                   ".gz or .zst, and .parquet; repeat the option for several")
      ->allow_extra_args(false);
  verb->add_option("--batches", a->batches,
                   "Safetensors file with the arguments of the model's forward pass in "
                   "transformers: input_ids, int64 [batch, sequence], and optional inputs "
                   "(attention_mask, token_type_ids, labels)");
  verb->add_option("--text-key", a->text_key,
                   "with --file: the field of the JSON objects, or the column, that contains the "
                   "text; a number selects a column of a .tsv file without a header line; default: "
                   "the key in the run's configuration, or text")
      ->needs("--file");
  verb->add_option(
          "--text-pair-key", a->text_pair_key,
          "with --file and a classification or regression model: the field or column of the second "
          "text of pairs; default: the key in the run's configuration, or text_pair")
      ->needs("--file");
  verb->add_option("--label-key", a->label_key,
                   "with --file and a classification or regression model: the field or column of "
                   "the label; default: the key in the run's configuration, or label")
      ->needs("--file");
  verb->add_option("--context", a->scoring.context,
                   "with --text or --file: number of tokens in a window; longer texts are cut into "
                   "windows; default: the context of the model, model.max_position_embeddings")
      ->check(CLI::PositiveNumber);
  verb->add_option("--stride", a->scoring.stride,
                   "with --text or --file: number of tokens between the starts of two windows; a "
                   "smaller stride gives each token more context and takes longer; default: the "
                   "window size, so windows do not overlap")
      ->check(CLI::PositiveNumber);
  verb->add_option("--logits-out", a->logits_out,
                   "with --batches: write the logits to this Safetensors file, fp32 [batch, "
                   "sequence, vocabulary] or [batch, labels]");
  verb->add_option(
      "--grads-out", a->grads_out,
      "with --batches: write the gradients to this Safetensors file, with Hugging Face "
      "names");
  verb->add_option("--hidden-out", a->hidden_out,
                   "write the hidden states after the final norm, [batch, sequence, hidden], of "
                   "--batches or --text to this Safetensors file; with --text, or for a model "
                   "without an output layer, no loss is printed");
  add_task_options(*verb, a->tasks);
  verb->add_flag("--overwrite", a->overwrite, "replace the output files of an earlier evaluate");
  verb->add_option("config", a->config,
                   "key=value settings: dtype, device, kernels, train.num_threads, and for texts "
                   "tokenizer.path; with --tasks also the section eval and the layout of the model "
                   "(section parallel)");
  verb->footer("Prints one JSON line. For texts: loss (mean cross-entropy per token, in nats), "
               "perplexity, bits_per_byte, tokens, bytes and documents. For --batches: loss (null "
               "without labels) and its components. For labels: loss, accuracy, f1 and matthews, "
               "or pearson and spearman, "
               "and samples. With --tasks, prints a table of scores.\n"
               "examples:\n"
               "  pentatron evaluate runs/quickstart/checkpoints --text \"It is a truth\"\n"
               "  pentatron evaluate model.gguf --file held_out/ --file more.jsonl --stride 512\n"
               "  pentatron evaluate DIR --tasks hellaswag,my_task.yaml --out scores.json\n"
               "  pentatron evaluate DIR --batches batch.safetensors --grads-out grads.safetensors "
               "dtype=fp64");
  verb->callback([a, &chosen] { chosen = [a] { return evaluate(*a); }; });
}

} // namespace pentatron::cli
