#include "pentatron/generate/generate.h"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <optional>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "pentatron/base/error.h"
#include "pentatron/base/format.h"
#include "pentatron/base/hf_cache.h"
#include "pentatron/base/json.h"
#include "pentatron/base/log.h"
#include "pentatron/base/naming.h"
#include "pentatron/base/progress.h"
#include "pentatron/cli/commands.h"
#include "pentatron/cli/files/terminal.h"
#include "pentatron/cli/loaded_model.h"
#include "pentatron/cli/named_adapters.h"
#include "pentatron/cli/prompts.h"
#include "pentatron/cli/ranks.h"
#include "pentatron/cli/writing.h"
#include "pentatron/comm/gather_text.h"

namespace pentatron::cli {

namespace {

struct GenerateArguments {
  std::string model, prompt_file;
  std::vector<std::string> adapters, prompts, config;
  std::vector<int64_t> tokens;
  WritingOptions writing;
  RankArguments ranks;
  int64_t batch_size = 8;
  bool json = false, logprobs = false, ignore_eos = false;
};

struct Prompt {
  std::string text;
  std::vector<int64_t> tokens;
  uint64_t number = 0; ///< for the draws
  int64_t variant = 0; ///< 0: the model alone, else the adapter of that name
};

/// Adapters by name are applied while the model runs; the only one without a name is merged.
bool has_names(const std::vector<std::string>& adapters) {
  if (std::ranges::any_of(adapters, names_adapter)) return true;
  if (adapters.size() > 1)
    raise<ConfigError>("--adapter {} and --adapter {} have no names\n  try: --adapter a={} "
                       "--adapter b={}",
                       adapters[0], adapters[1], shell_word(adapters[0]), shell_word(adapters[1]));
  return false;
}

std::vector<FilePrompt> texts_of(const GenerateArguments& arguments) {
  std::vector<FilePrompt> texts;
  for (const std::string& text : arguments.prompts) texts.push_back({text, std::nullopt});
  if (!arguments.prompt_file.empty()) {
    const std::vector<FilePrompt> more = naming(
        "--prompt-file ", arguments.prompt_file,
        [&] { return read_prompt_file(arguments.prompt_file); },
        "--prompt-file with a file that has one prompt on each line");
    texts.insert(texts.end(), more.begin(), more.end());
  }
  return texts;
}

/// The names of adapters that prompts of a file ask for.
void check_names(const std::vector<FilePrompt>& texts, const std::vector<std::string>& names,
                 const std::string& file) {
  for (const FilePrompt& text : texts)
    if (text.adapter && std::ranges::find(names, *text.adapter) == names.end())
      raise<ConfigError>("--prompt-file {} has a prompt with adapter={}, which is not the name of "
                         "an --adapter\n  try: --adapter {}=DIR",
                         file, *text.adapter, shell_word(*text.adapter));
}

/// A text that names no adapter is given to each of them.
std::vector<Prompt> prompts_of(std::vector<FilePrompt> texts, const data::Tokenizer& tokenizer,
                               const std::string& bos, const std::vector<std::string>& names) {
  if (texts.empty()) texts.emplace_back();
  std::vector<Prompt> prompts;
  for (size_t i = 0; i < texts.size(); ++i) {
    const auto& [text, adapter] = texts[i];
    Prompt prompt{
        .text = text, .tokens = generate::prompt_tokens(tokenizer, text, bos), .number = i};
    if (prompt.tokens.empty())
      raise<ConfigError>("the prompt is empty, and the tokenizer has no token to start a text "
                         "with\n  try: --prompt TEXT");
    for (size_t v = 0; v < names.size(); ++v) {
      const bool wanted = adapter ? *adapter == names[v] : v > 0 || names.size() == 1;
      if (!wanted) continue;
      prompt.variant = static_cast<int64_t>(v);
      prompts.push_back(prompt);
    }
  }
  return prompts;
}

std::string_view name_of(generate::Finish finish, bool stopped) {
  if (finish == generate::Finish::kStopToken) return "stop_token";
  return stopped ? "stop_string" : "length";
}

/// How fast the model reads and writes.
struct Speed {
  int64_t prompt_tokens = 0, new_tokens = 0;
  int64_t later_tokens = 0; ///< new ones but for the first of each text, which reading gives
  double reading_s = 0, writing_s = 0;

  std::string describe() const {
    std::string text = fmt::format("{} in {:.2f} s, {}", counted(prompt_tokens, "prompt token"),
                                   reading_s, counted(new_tokens, "new token"));
    if (later_tokens > 0)
      text += fmt::format(" at {:.1f} tokens/s", static_cast<double>(later_tokens) / writing_s);
    return text;
  }
};

/// Writes the texts of one model on one rank.
class Run {
 public:
  Run(const GenerateArguments& arguments, const OpenedModel& opened, const NamedAdapters& adapters,
      const data::Tokenizer* tokenizer, const comm::Group& world)
      : arguments_(arguments), names_(adapters.names), tokenizer_(tokenizer),
        speaks_(world.rank() == 0), continues_(models::model_spec(opened.config.model).generates ==
                                               models::Generates::kContinuation),
        options_(arguments.writing.options), model_(load_model(opened, world, adapters.adapters)) {
    options_.context = opened.config.train.seq_length;
    if (!arguments.ignore_eos) options_.stop_tokens = opened.source->facts().generation.eos;
    if (tokenizer != nullptr) {
      if (!arguments.ignore_eos && options_.stop_tokens.empty() && tokenizer->eod() >= 0)
        options_.stop_tokens = {tokenizer->eod()};
      options_.sampling.num_tokens =
          std::min(tokenizer->vocab_size(), opened.config.model.vocab_size);
    }
  }

  void write(const std::vector<Prompt>& prompts) {
    const bool streams = !arguments_.json && prompts.size() == 1;
    const auto batch = static_cast<size_t>(arguments_.batch_size);
    // On a terminal the texts themselves show how far it is.
    tell_long(prompts);
    if (speaks_ && prompts.size() > 1 && !on_terminal())
      progress_.emplace("generating", std::ssize(prompts));
    for (size_t first = 0; first < prompts.size(); first += batch) {
      const size_t last = std::min(prompts.size(), first + batch);
      if (progress_) progress_->update(static_cast<int64_t>(first));
      write_batch({prompts.data() + first, last - first}, streams);
    }
    progress_.reset();
    if (speaks_ && outgrown_ > 0)
      log::warning("{} longer than the model's context of {}: from there on, the model read only "
                   "the end of the text",
                   prompts.size() == 1 ? "the text became"
                                       : fmt::format("{} became", counted(outgrown_, "text")),
                   options_.context);
    if (speaks_) log::info("{}", speed_.describe());
  }

 private:
  /// Of a text that exceeds the context only the later half is read.
  void tell_long(const std::vector<Prompt>& prompts) const {
    const int64_t context = options_.context;
    int64_t longest = 0;
    for (const Prompt& prompt : prompts) longest = std::max(longest, std::ssize(prompt.tokens));
    if (speaks_ && continues_ && longest > context)
      log::warning(
          "{} has {} tokens, more than the model's context of {}: only its last {} are read",
          prompts.size() == 1 ? "the prompt" : "the longest prompt", longest, context, context / 2);
  }

  void write_batch(std::span<const Prompt> prompts, bool streams) {
    std::vector<std::vector<int64_t>> tokens;
    std::vector<TextWriter> writers;
    options_.numbers.clear();
    options_.variants.clear();
    for (const Prompt& prompt : prompts) {
      tokens.push_back(prompt.tokens);
      options_.numbers.push_back(prompt.number);
      options_.variants.push_back(prompt.variant);
      if (tokenizer_ != nullptr)
        writers.emplace_back(*tokenizer_, prompt.tokens, arguments_.writing.stops);
    }
    const bool shows = speaks_ && streams;
    if (shows && tokenizer_ != nullptr && continues_) show(prompts[0].text);
    bool begun = false;
    const double start = monotonic_s();
    double first_token = 0;
    const std::vector<generate::Text> texts = generate::generate(
        model_, tokens, options_, [&](size_t text, const generate::Drawn& drawn) {
          if (!begun) first_token = monotonic_s();
          std::string piece;
          if (tokenizer_ != nullptr) {
            piece = writers[text].push(drawn.token);
          } else {
            piece = fmt::format("{}{}", begun ? " " : "", drawn.token);
          }
          begun = true;
          if (shows) show(piece);
          return tokenizer_ == nullptr || !writers[text].stopped();
        });
    const double end = monotonic_s();
    for (const Prompt& prompt : prompts)
      speed_.prompt_tokens += static_cast<int64_t>(prompt.tokens.size());
    for (const generate::Text& text : texts) {
      const auto count = static_cast<int64_t>(text.tokens.size());
      speed_.new_tokens += count;
      speed_.later_tokens += std::max<int64_t>(0, count - 1);
    }
    for (size_t i = 0; i < texts.size(); ++i) outgrown_ += outgrows(prompts[i], texts[i]);
    speed_.reading_s += (begun ? first_token : end) - start;
    speed_.writing_s += begun ? end - first_token : 0;
    for (TextWriter& writer : writers) {
      const std::string rest = writer.finish();
      if (shows) show(rest);
    }
    if (shows) show("\n");
    if (!speaks_ || streams) return;
    for (size_t i = 0; i < texts.size(); ++i) {
      const TextWriter* const writer = tokenizer_ != nullptr ? &writers[i] : nullptr;
      print(prompts[i], texts[i], writer);
    }
  }

  /// Whether the model could not read all of a text, whose prompt it could. It never reads the last
  /// token.
  bool outgrows(const Prompt& prompt, const generate::Text& text) const {
    const int64_t begin = continues_ ? std::ssize(prompt.tokens) : 1;
    return begin <= options_.context && begin + std::ssize(text.tokens) - 1 > options_.context;
  }

  void print(const Prompt& prompt, const generate::Text& text, const TextWriter* writer) {
    if (!arguments_.json) {
      if (has_adapters()) show(fmt::format("{}:\n", names_[static_cast<size_t>(prompt.variant)]));
      const std::string own =
          writer != nullptr ? writer->text() : fmt::format("{}", fmt::join(text.tokens, " "));
      show(fmt::format("{}{}\n\n", continues_ ? prompt.text : "", own));
      return;
    }
    Json line = {{"prompt_ids", prompt.tokens}, {"ids", text.tokens}};
    if (has_adapters())
      line["adapter"] =
          prompt.variant == 0 ? Json() : Json(names_[static_cast<size_t>(prompt.variant)]);
    if (writer != nullptr) {
      line["prompt"] = prompt.text;
      line["text"] = writer->text();
    }
    if (arguments_.logprobs) line["logprobs"] = text.logprobs;
    line["finish"] = name_of(text.finish, writer != nullptr && writer->stopped());
    fmt::print("{}\n", dump_json(line));
  }

  bool has_adapters() const { return names_.size() > 1; }

  const GenerateArguments& arguments_;
  const std::vector<std::string>& names_; ///< of variants; empty: the model alone
  const data::Tokenizer* tokenizer_;
  bool speaks_;
  bool continues_; ///< the prompt, in place of answering it
  generate::Options options_;
  parallelize::RankModel model_;
  Speed speed_;
  int64_t outgrown_ = 0;             ///< texts that became longer than the context
  std::optional<Progress> progress_; ///< of many prompts
};

/// Nobody means a text of the model's own with an empty pipe.
void refuse_empty_input(const data::Tokenizer& tokenizer, const std::string& bos) {
  const bool has_start = !generate::prompt_tokens(tokenizer, "", bos).empty();
  raise<DataError>("standard input has no prompt: it is empty\n  try: --prompt TEXT{}",
                   has_start ? ", or --prompt \"\" to begin with the tokenizer's start token" : "");
}

/// Before the weights are read.
void check_tokens(const std::vector<int64_t>& tokens, int64_t vocab_size) {
  std::vector<int64_t> known = tokens;
  for (int64_t& token : known) token = std::clamp<int64_t>(token, 0, vocab_size - 1);
  const auto [bad, ignored] = std::ranges::mismatch(tokens, known);
  if (bad == tokens.end()) return;
  raise<ConfigError>("--tokens has {}, but the ids of the model's vocabulary are 0 to {}\n  try: "
                     "--tokens {}",
                     *bad, vocab_size - 1, fmt::join(known, ","));
}

int run_generate(const GenerateArguments& arguments) {
  check_writing(arguments.writing);
  const Ranks ranks = find_ranks(arguments.ranks);
  const bool named = has_names(arguments.adapters);
  const std::string merged = named || arguments.adapters.empty() ? "" : arguments.adapters.front();
  const OpenedModel opened =
      open_generator(with_adapter(arguments.model, merged), arguments.config, ranks.size);
  tell_unused_settings(opened, ranks, &arguments.writing);
  check_tokens(arguments.tokens, opened.config.model.vocab_size);
  if (const std::string& path = opened.config.tokenizer.path;
      !arguments.tokens.empty() && !path.empty())
    raise<ConfigError>("tokenizer.path={} has no effect with --tokens, which prints token "
                       "ids\n  try: remove tokenizer.path",
                       path);
  std::shared_ptr<const data::Tokenizer> tokenizer;
  if (arguments.tokens.empty()) {
    tokenizer = open_tokenizer_of(opened);
    if (tokenizer == nullptr) {
      raise<ConfigError>(
          "{} has no tokenizer\n  try: {}", arguments.model,
          download_or(opened.source->facts().path,
                      fmt::format("{}, or --tokens 1,2,3 with token ids of its vocabulary",
                                  kGivenTokenizer)));
    }
    if (tokenizer->vocab_size() > opened.config.model.vocab_size)
      log::info("{}: the tokenizer has {} tokens, but the model has only the first {}",
                arguments.model, tokenizer->vocab_size(), opened.config.model.vocab_size);
  }
  const std::string bos =
      tokenizer != nullptr ? data::tokenizer::configured_token(tokenizer_path(opened), "bos_token")
                           : "";
  const std::vector<FilePrompt> texts = texts_of(arguments);
  const NamedAdapters adapters =
      read_named_adapters(named ? arguments.adapters : std::vector<std::string>(), opened, "");
  check_names(texts, adapters.names, arguments.prompt_file);
  const bool none_given =
      arguments.tokens.empty() && arguments.prompts.empty() && arguments.prompt_file.empty();
  if (none_given && ranks.start == Ranks::Start::kSupervised && has_piped_input())
    raise<ConfigError>("--backend {}: the processes of ranks have no standard input to read a "
                       "prompt from\n  try: --prompt-file FILE, or --backend in_process",
                       arguments.ranks.backend);
  return run_ranks(ranks, opened.config, [&](const comm::Group& world) {
    const RankLog rank_log("", world);
    std::vector<FilePrompt> own = texts;
    if (none_given) { // of launched processes only the first has the input
      const bool reads = world.rank() == 0 && has_piped_input();
      const std::string told =
          comm::broadcast_text(reads ? "." + read_piped_prompt() : "", 0, world);
      if (told == ".") refuse_empty_input(*tokenizer, bos);
      if (!told.empty()) own = {{told.substr(1), std::nullopt}};
    }
    std::vector<Prompt> prompts;
    const auto variants = static_cast<int64_t>(adapters.adapters.size());
    if (tokenizer == nullptr)
      for (int64_t v = std::min<int64_t>(1, variants); v <= variants; ++v)
        prompts.push_back({.text = "", .tokens = arguments.tokens, .variant = v});
    else
      prompts = prompts_of(std::move(own), *tokenizer, bos, adapters.names);
    Run(arguments, opened, adapters, tokenizer.get(), world).write(prompts);
  });
}

} // namespace

void add_generate(CLI::App& program, Action& chosen) {
  auto arguments = std::make_shared<GenerateArguments>();
  CLI::App* verb = program.add_subcommand("generate", "generate text with a model");
  verb->add_option("model", arguments->model, kModelHelp)->required();
  verb->add_option("--adapter", arguments->adapters,
                   std::string(kAdapterHelp) +
                       "; several as NAME=DIR each: every prompt is continued with each of them, "
                       "or with the one that its \"adapter\" in --prompt-file names")
      ->allow_extra_args(false);
  verb->add_option("config", arguments->config,
                   "key=value settings: dtype, device, kernels, train.num_threads, "
                   "parallel.tensor_model_parallel_size, parallel.pipeline_model_parallel_size, "
                   "parallel.expert_model_parallel_size, parallel.expert_tensor_parallel_size, "
                   "tokenizer.path, train.seq_length (context, in tokens)");
  CLI::Option* prompt = verb->add_option("--prompt", arguments->prompts,
                                         "text to continue; repeat the option for several prompts")
                            ->allow_extra_args(false);
  CLI::Option* file = verb->add_option(
      "--prompt-file,--prompts", arguments->prompt_file,
      "file of prompts: one per line, JSON Lines with {\"prompt\": \"...\"}, or (.json) a JSON "
      "array of strings or such objects; the texts are printed in the order of the file");
  verb->add_option("--tokens", arguments->tokens,
                   "token ids to continue, separated by commas; the output is token ids too")
      ->allow_extra_args(false)
      ->delimiter(',')
      ->excludes(prompt)
      ->excludes(file);
  verb->add_flag("--json", arguments->json,
                 "print one JSON line per prompt with prompt, prompt_ids, ids, text and finish");
  verb->add_flag("--logprobs", arguments->logprobs,
                 "with --json: also print the log probability of each new token")
      ->needs("--json");
  verb->add_option("--batch-size", arguments->batch_size,
                   "number of prompts to process at the same time")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20))
      ->capture_default_str();
  verb->add_flag(
      "--ignore-eos", arguments->ignore_eos,
      "do not stop at end tokens; always generate the number of tokens in --max-new-tokens");
  add_writing_options(*verb, arguments->writing);
  verb->get_option("--stop")->excludes("--tokens"); // whose output has no strings
  add_rank_options(*verb, arguments->ranks);
  verb->footer("Without --prompt, --prompt-file and --tokens, the prompt is read from standard "
               "input if that is a pipe or a file.\n"
               "examples:\n"
               "  pentatron generate runs/quickstart/checkpoints --prompt \"It is a truth\"\n"
               "  echo \"It is a truth\" | pentatron generate runs/quickstart/checkpoints\n"
               "  pentatron generate model.gguf --prompt \"The capital of France is\" "
               "--temperature 0 --max-new-tokens 20 --json\n"
               "  pentatron generate DIR --prompt-file questions.jsonl --json --ranks 2 "
               "parallel.tensor_model_parallel_size=2");
  verb->callback(
      [arguments, &chosen] { chosen = [arguments] { return run_generate(*arguments); }; });
}

} // namespace pentatron::cli
