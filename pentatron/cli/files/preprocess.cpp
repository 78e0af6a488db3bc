#include <CLI/CLI.hpp>

#include <cstdio>
#include <thread>

#include <fmt/format.h>

#include "pentatron/base/error.h"
#include "pentatron/base/format.h"
#include "pentatron/base/log.h"
#include "pentatron/base/progress.h"
#include "pentatron/cli/files/file_verbs.h"
#include "pentatron/data/dataset.h"
#include "pentatron/data/preprocess/open_tokenizer.h"
#include "pentatron/data/preprocess/preprocess.h"
#include "pentatron/data/token_stream.h"

namespace pentatron::cli {

namespace {

struct PreprocessArguments {
  data::PreprocessOptions options;
  std::string tokenizer, pattern;
  std::string on_bad_input = "skip";
};

/// One line that is written over on a terminal, a line every ten seconds in a file.
void show(const data::PreprocessProgress& progress) {
  static double told = 0;
  if (log::is_terminal()) {
    log::set_progress(data::to_string(progress));
  } else if (progress.seconds - told >= 10) {
    told = progress.seconds;
    log::print(data::to_string(progress));
  }
}

/// How many tokens a run with the default dataset.split would have of each part.
std::string describe_parts(const std::string& prefix, const std::string& split) {
  const auto corpus = std::make_shared<const data::IndexedDataset>(prefix);
  constexpr int64_t kAnyToken = int64_t{1} << 62;
  const data::IndexedStream stream(corpus, kAnyToken);
  const data::Split parts = data::split_corpus(stream, split);
  return fmt::format(
      "{}, {}; with dataset.split={}: {} for training, {} for validation, {} for testing",
      counted(corpus->num_documents(), "document"), counted(corpus->num_tokens(), "token"), split,
      counted(parts.train.size(), "token"), parts.validation.size(), parts.test.size());
}

int run_preprocess(PreprocessArguments arguments) {
  data::PreprocessOptions& options = arguments.options;
  options.tokenizer = data::open_tokenizer(arguments.tokenizer, arguments.pattern);
  options.on_bad_input =
      arguments.on_bad_input == "error" ? data::OnBadInput::kError : data::OnBadInput::kSkip;
  data::PreprocessProgress last;
  options.progress = [&](const data::PreprocessProgress& progress) {
    last = progress;
    show(progress);
  };
  const data::PreprocessResult result = data::preprocess(options);
  log::set_progress("");
  last.total_bytes = 0; // done: no share and no time left
  log::print((result.resumed ? "resumed; " : "") + result.report.to_string());
  if (!result.skip_list.empty())
    log::print("  all skipped input is listed in " + result.skip_list.string());
  log::print(data::to_string(last));
  for (const std::string& prefix : result.prefixes)
    log::print(prefix + ": " + describe_parts(prefix, data::DatasetConfig{}.split));
  for (const std::string& prefix : result.prefixes) fmt::print("{}\n", prefix);
  return 0;
}

} // namespace

void add_preprocess(CLI::App& program, Action& chosen) {
  auto arguments = std::make_shared<PreprocessArguments>();
  data::PreprocessOptions& options = arguments->options;
  options.workers = std::max(1u, std::thread::hardware_concurrency());
  CLI::App* verb =
      program.add_subcommand("preprocess", "convert text files to a corpus of token ids");
  verb->add_option(
          "--input", options.inputs,
          "files (.jsonl, .json, .txt, .md, each also as .gz or .zst; .parquet), folders, or "
          "- for JSON Lines on standard input")
      ->required();
  verb->add_option("--tokenizer", arguments->tokenizer,
                   "tokenizer file or folder, a model folder that contains one, ORG/NAME of a "
                   "downloaded Hugging Face model, or bytes for one token per byte")
      ->required();
  verb->add_option(
      "--pattern", arguments->pattern,
      "how text is split into words, for .tiktoken files: gpt2, cl100k, llama3, qwen2, "
      "o200k or a regular expression; training needs the same tokenizer.pattern");
  verb->add_option("--output", options.output,
                   "prefix of the output files: PREFIX_text_document.bin and .idx")
      ->required();
  verb->add_option("--json-keys", options.json_keys,
                   "keys of the JSON objects that contain text, separated by commas; each key gets "
                   "its own corpus")
      ->delimiter(',')
      ->capture_default_str();
  verb->add_flag("--append-eod", options.append_eod,
                 "add the end-of-document token after every document");
  verb->add_flag("--split-sentences", options.split_sentences,
                 "store every sentence as a separate sequence of its document, the format that "
                 "dataset.type=bert reads: PREFIX_text_sentence.bin and .idx");
  verb->add_option("--workers", options.workers, "number of threads that tokenize")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  verb->add_option("--on-bad-input", arguments->on_bad_input,
                   "what to do with invalid lines and files; skip: leave them out and list them in "
                   "PREFIX_skipped.jsonl; error: stop at the first one")
      ->check(CLI::IsMember({"skip", "error"}))
      ->capture_default_str();
  verb->add_option(
          "--max-document-bytes", options.max_document_bytes,
          "maximum size of a JSON line or a text file, in bytes; longer ones are invalid input")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 30))
      ->capture_default_str();
  verb->add_flag("--overwrite", options.overwrite,
                 "replace the output files of an earlier command");
  verb->footer("If the command was interrupted, run it again to resume it.\n"
               "example:\n"
               "  pentatron preprocess --input corpus.jsonl.zst --tokenizer bytes --output "
               "data/corpus --append-eod");
  verb->callback(
      [arguments, &chosen] { chosen = [arguments] { return run_preprocess(*arguments); }; });
}

} // namespace pentatron::cli
