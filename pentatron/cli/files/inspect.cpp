#include <CLI/CLI.hpp>

#include <algorithm>
#include <array>
#include <tuple>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "pentatron/base/error.h"
#include "pentatron/base/format.h"
#include "pentatron/base/json.h"
#include "pentatron/base/log.h"
#include "pentatron/base/naming.h"
#include "pentatron/cli/files/file_verbs.h"
#include "pentatron/cli/files/objective_samples.h"
#include "pentatron/cli/files/terminal.h"
#include "pentatron/config/config.h"
#include "pentatron/data/config.h"
#include "pentatron/data/gpt/blend.h"
#include "pentatron/data/gpt/gpt_dataset.h"
#include "pentatron/data/preprocess/open_tokenizer.h"
#include "pentatron/data/sft/sft_dataset.h"
#include "pentatron/data/token_stream.h"

namespace pentatron::cli {

namespace {

struct SampleArguments {
  data::DatasetConfig dataset;       ///< what a run would use: its order, split and seed
  std::vector<std::string> settings; ///< for `dataset`, with --sft; of a run, without --prefix
  std::string prefix, sft, order{config::to_string(dataset.order)}, part = "train", tokenizer;
  int64_t sequence_length = 1024;
  std::optional<int64_t> num_samples;
  std::vector<int64_t> indices;
  bool text = false;
  bool gives_length = false; ///< --sequence-length is given
  /// Options for corpora alone that are given, and the settings that say the same; empty: none do.
  std::vector<std::pair<std::string, std::string>> of_corpus;
};

/// What settings are for.
struct SampleSettings {
  data::DatasetConfig dataset;

  static constexpr auto fields() {
    return std::tuple{config::field("dataset", &SampleSettings::dataset, "the examples")};
  }
};

/// The keys that change what an example is.
constexpr std::array<const char*, 4> kExampleKeys = {
    "dataset.chat_date", "dataset.text_key", "dataset.on_bad_input", "dataset.max_line_bytes"};

data::DatasetConfig dataset_of_examples(const SampleArguments& a) {
  SampleSettings settings{.dataset = a.dataset};
  settings.dataset.type = data::DatasetType::kSft;
  settings.dataset.path = a.sft;
  config::Violations violations;
  for (const std::string& text : a.settings) {
    const std::string key = text.substr(0, text.find('='));
    if (std::ranges::find(kExampleKeys, key) == kExampleKeys.end())
      raise<ConfigError>("inspect samples --sft takes no setting {}\n  try: key=value with one of "
                         "{}",
                         text, fmt::join(kExampleKeys, ", "));
    config::apply_override(settings, text, violations);
  }
  config::validate(settings, violations);
  violations.throw_if_any();
  return settings.dataset;
}

data::Part part_of(const std::string& name) {
  if (name == "train") return data::Part::kTrain;
  return name == "test" ? data::Part::kTest : data::Part::kValidation;
}

std::shared_ptr<const data::TokenDataset> open_samples(const SampleArguments& a) {
  const std::string prefix = data::without_ending(a.prefix);
  const auto corpus = naming("--prefix ", prefix,
                             [&] { return std::make_shared<const data::IndexedDataset>(prefix); });
  constexpr int64_t kAnyToken = int64_t{1} << 62;
  const data::Part part = part_of(a.part);
  if (a.order == "stable") {
    const auto stream = std::make_shared<const data::IndexedStream>(corpus, kAnyToken);
    const data::Split split = data::split_corpus(*stream, a.dataset.split);
    const data::StreamRange range = part == data::Part::kTrain        ? split.train
                                    : part == data::Part::kValidation ? split.validation
                                                                      : split.test;
    return std::make_shared<data::TextDataset>(
        stream, range,
        data::TextDataset::Options{.sequence_length = a.sequence_length,
                                   .seed = a.dataset.seed,
                                   .name = std::string(data::name_of(part))});
  }
  const data::SequenceRange range =
      data::megatron_split(a.dataset.split, corpus->num_sequences(), part);
  const std::vector<int32_t> lengths = corpus->lengths(range.begin, range.end);
  auto index = std::make_shared<const data::GptIndex>(
      data::build_gpt_index(lengths, range.begin,
                            {.sequence_length = a.sequence_length,
                             .num_samples = a.num_samples,
                             .seed = a.dataset.seed,
                             .name = fmt::format("the {} part of {}", a.part, corpus->prefix())}));
  return std::make_shared<data::GptDataset>(corpus, std::move(index), kAnyToken);
}

/// All of them, before the first sample is printed.
void check_indices(const SampleArguments& a, const data::TokenDataset& samples) {
  const std::optional<int64_t> size = samples.size();
  if (!size) return; // the stable order has no end
  for (const int64_t index : a.indices)
    if (index >= *size)
      raise<ConfigError>("--index {} does not exist: the {} part of {} has {}, counted from 0\n"
                         "  try: --index {}",
                         index, a.part, a.prefix, counted(*size, "sample"), *size - 1);
}

/// The text of tokens in parts, what is learned in bold green.
std::string colored(const data::Tokenizer& tokenizer, const std::vector<int64_t>& tokens,
                    const std::vector<uint8_t>& taught) {
  std::string text;
  for (size_t begin = 0; begin < tokens.size();) {
    size_t end = begin;
    while (end < tokens.size() && taught[end] == taught[begin]) ++end;
    const std::string part =
        for_terminal(tokenizer.decode_with_special(std::span(tokens).subspan(begin, end - begin)));
    text += taught[begin] != 0 ? fmt::format("\x1b[1;32m{}\x1b[0m", part) : part;
    begin = end;
  }
  return text;
}

/// Examples in the order of the file, as dataset.type=sft reads them.
int print_examples(const SampleArguments& a) {
  if (a.tokenizer.empty()) throw ConfigError("--sft needs a tokenizer\n  try: --tokenizer PATH");
  const data::DatasetConfig dataset = dataset_of_examples(a);
  const auto tokenizer = data::open_decoder(a.tokenizer);
  const data::TaughtTexts texts(
      {a.sft}, dataset, *tokenizer,
      {.option = "--sft",
       .render = a.tokenizer == data::kBytesTokenizer
                     ? data::RenderChat()
                     : data::open_chat_template(a.tokenizer, dataset.chat_date),
       .vocab_size = tokenizer->vocab_size(),
       .sequence_length = a.sequence_length});
  for (const std::string& count : texts.incomplete()) log::warning("{}: {}", a.sft, count);
  for (const int64_t index : a.indices) {
    if (index >= texts.size())
      raise<ConfigError>("--index {} does not exist: {} has {}, counted from 0\n  try: --index {}",
                         index, a.sft, counted(texts.size(), "example"), texts.size() - 1);
    const std::vector<int64_t> tokens(texts.tokens(index),
                                      texts.tokens(index) + texts.length(index));
    const std::vector<uint8_t> taught(texts.taught(index),
                                      texts.taught(index) + texts.length(index));
    if (a.text && on_terminal()) {
      fmt::print("{}\n", colored(*tokenizer, tokens, taught));
      continue;
    }
    fmt::print("{{\"index\":{},\"tokens\":[{}],\"learned\":[{}]", index, fmt::join(tokens, ","),
               fmt::join(taught, ","));
    if (a.text) {
      std::vector<int64_t> answers;
      for (size_t i = 0; i < tokens.size(); ++i)
        if (taught[i] != 0) answers.push_back(tokens[i]);
      fmt::print(",\"text\":{},\"learned_text\":{}",
                 dump_json(tokenizer->decode_with_special(tokens)),
                 dump_json(tokenizer->decode_with_special(answers)));
    }
    fmt::print("}}\n");
  }
  return 0;
}

/// Samples with masked words or spans.
int print_samples_of_run(const SampleArguments& a) {
  if (!a.of_corpus.empty()) {
    const auto& [option, key] = a.of_corpus.front();
    raise<ConfigError>("{} has no effect on the settings of a run\n  try: {}", option,
                       key.empty() ? "remove " + option : key);
  }
  ObjectiveSamples samples{
      .settings = a.settings, .part = part_of(a.part), .indices = a.indices, .text = a.text};
  if (!a.tokenizer.empty()) samples.settings.push_back("tokenizer.path=" + a.tokenizer);
  if (a.gives_length)
    samples.settings.push_back(fmt::format("train.seq_length={}", a.sequence_length));
  print_objective_samples(samples);
  return 0;
}

int print_samples(const SampleArguments& a) {
  for (const std::string& text : a.settings)
    if (text.find('=') == std::string::npos && !text.ends_with(".yaml") && !text.ends_with(".yml"))
      raise<ConfigError>(
          "inspect samples takes no argument {}\n  try: several samples separated by "
          "commas, such as --index 0,1",
          text);
  if (!a.sft.empty()) return print_examples(a);
  if (!a.settings.empty() && !a.prefix.empty())
    raise<ConfigError>(
        "{} is a setting for --sft or of a run, but --prefix is given\n  try: options "
        "such as --seed",
        a.settings.front());
  if (!a.settings.empty()) return print_samples_of_run(a);
  if (a.prefix.empty())
    throw ConfigError("inspect samples needs one of --prefix, --sft and the settings of a run, but "
                      "none is given\n  try: --prefix PREFIX");
  if (!a.text && !a.tokenizer.empty())
    raise<ConfigError>("--tokenizer {} has no effect without --text\n  try: --text", a.tokenizer);
  if (a.text && a.tokenizer.empty())
    throw ConfigError("--text needs a tokenizer\n  try: --tokenizer PATH");
  if (a.num_samples && a.order != "megatron")
    raise<ConfigError>("--num-samples has no effect with --order {}\n  try: --order megatron, or "
                       "remove --num-samples",
                       a.order);
  const auto tokenizer = a.text ? data::open_decoder(a.tokenizer) : nullptr;
  const auto samples = open_samples(a);
  check_indices(a, *samples);
  log::info("samples in the order {}, like dataset.order={}", a.order, a.order);
  std::vector<int64_t> tokens(static_cast<size_t>(a.sequence_length + 1));
  for (const int64_t index : a.indices) {
    samples->sample(index, tokens.data());
    fmt::print("{{\"index\":{},\"tokens\":[{}]", index, fmt::join(tokens, ","));
    if (tokenizer) fmt::print(",\"text\":{}", dump_json(tokenizer->decode(tokens)));
    fmt::print("}}\n");
  }
  return 0;
}

struct BlendArguments {
  std::vector<double> weights;
  int64_t size = 0;
};

int print_blend(const BlendArguments& a) {
  double sum = 0;
  for (const double weight : a.weights) {
    if (!(weight > 0))
      raise<ConfigError>("--weights contains {}, which is not positive\n  try: --weights {}",
                         weight, fmt::join(std::vector<int>(a.weights.size(), 1), ","));
    sum += weight;
  }
  // Shares are taken as they are: dividing by a sum of 1 + 2^-52 could turn a tie.
  const bool shares = sum > 1 - 1e-9 && sum < 1 + 1e-9;
  const data::BlendOrder order(shares ? a.weights : data::normalized(a.weights));
  std::vector<int32_t> datasets;
  std::vector<int64_t> samples;
  for (int64_t n = 0; n < a.size; ++n) {
    const data::BlendOrder::Place place = order(n);
    datasets.push_back(place.dataset);
    samples.push_back(place.sample);
  }
  fmt::print("{{\"dataset_index\":[{}],\"dataset_sample_index\":[{}]}}\n", fmt::join(datasets, ","),
             fmt::join(samples, ","));
  return 0;
}

void add_samples(CLI::App& verb, Action& chosen) {
  auto a = std::make_shared<SampleArguments>();
  CLI::App* samples =
      verb.add_subcommand("samples", "print the tokens of samples as JSON: of a corpus, of "
                                     "examples for fine-tuning, or of a run that trains BERT or "
                                     "T5");
  CLI::Option* const prefix =
      samples->add_option("--prefix", a->prefix, "corpus: prefix of PREFIX.bin and PREFIX.idx");
  CLI::Option* const sft =
      samples
          ->add_option("--sft", a->sft,
                       "JSON Lines for dataset.type=sft: print its examples in order, and which "
                       "tokens are trained on; with --text on a terminal these tokens are green")
          ->excludes(prefix);
  // Examples are shown as they stand in the file.
  std::vector<CLI::Option*> of_corpus;
  of_corpus.push_back(samples
                          ->add_option("--order", a->order,
                                       "order of samples, like dataset.order: megatron or stable")
                          ->check(CLI::IsMember({"megatron", "stable"}))
                          ->capture_default_str());
  CLI::Option* const length =
      samples
          ->add_option("--sequence-length", a->sequence_length, "number of tokens in each sample")
          ->check(CLI::PositiveNumber)
          ->capture_default_str();
  of_corpus.push_back(
      samples
          ->add_option("--num-samples", a->num_samples,
                       "with --order megatron: number of samples that the run reads from this "
                       "part, which determines the order; default: one epoch")
          ->check(CLI::PositiveNumber));
  of_corpus.push_back(samples
                          ->add_option("--seed", a->dataset.seed,
                                       "random seed for the order of samples, like dataset.seed")
                          ->capture_default_str());
  of_corpus.push_back(
      samples
          ->add_option("--split", a->dataset.split,
                       "proportions of training, validation and test data, like dataset.split")
          ->capture_default_str());
  for (CLI::Option* const option : of_corpus) option->excludes(sft);
  samples->add_option("--part", a->part, "part of the data to print: train, valid or test")
      ->check(CLI::IsMember({"train", "valid", "validation", "test"}))
      ->capture_default_str()
      ->excludes(sft);
  samples
      ->add_option("--index", a->indices,
                   "numbers of the samples to print, counted from 0, separated by commas")
      ->delimiter(',')
      ->allow_extra_args(false) // settings may follow
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 62))
      ->required();
  samples->add_flag("--text", a->text, "also print the text, decoded with --tokenizer");
  samples->add_option("--tokenizer", a->tokenizer,
                      "with --text and --sft: the tokenizer, a file or folder, or bytes");
  samples->add_option(
      "config", a->settings,
      fmt::format("with --sft: key=value settings, of {}; without --sft and --prefix: a run with "
                  "dataset.type=bert or t5, as a YAML file or key=value settings of dataset, "
                  "tokenizer and train.seq_length",
                  fmt::join(kExampleKeys, ", ")));
  samples->footer("examples:\n"
                  "  pentatron inspect samples --prefix data/corpus_text_document "
                  "--sequence-length 64 --index 0,1,2 --text --tokenizer bytes\n"
                  "  pentatron inspect samples examples/bert.yaml --index 0,1 --text");
  samples->callback([a, of_corpus, length, &chosen] {
    a->gives_length = length->count() > 0;
    for (const CLI::Option* const option : of_corpus) {
      if (option->count() == 0) continue;
      const std::string name = option->get_name();
      const bool is_setting = name == "--seed" || name == "--split";
      a->of_corpus.emplace_back(
          name, is_setting ? fmt::format("dataset.{}={}", name.substr(2), option->as<std::string>())
                           : "");
    }
    chosen = [a] { return print_samples(*a); };
  });
}

} // namespace

void add_inspect(CLI::App& program, Action& chosen) {
  CLI::App* verb = program.add_subcommand(
      "inspect", "show the samples that a run reads, or a tensor in low precision");
  verb->require_subcommand(1);
  add_samples(*verb, chosen);
  auto a = std::make_shared<BlendArguments>();
  CLI::App* blend = verb->add_subcommand(
      "blend", "print which corpus each sample of a blend comes from, as JSON");
  blend->add_option("--weights", a->weights, "weight of each corpus, separated by commas")
      ->delimiter(',')
      ->required();
  blend->add_option("--size", a->size, "number of samples to print")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 32))
      ->required();
  blend->footer("example: pentatron inspect blend --weights 0.3,0.5,0.2 --size 20");
  blend->callback([a, &chosen] { chosen = [a] { return print_blend(*a); }; });
}

} // namespace pentatron::cli
