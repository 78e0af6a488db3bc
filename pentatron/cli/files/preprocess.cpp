#include <CLI/CLI.hpp>

#include <cstdio>
#include <thread>

#include <fmt/format.h>

#include "pentatron/base/error.h"
#include "pentatron/base/log.h"
#include "pentatron/cli/files/file_verbs.h"
#include "pentatron/data/preprocess/open_tokenizer.h"
#include "pentatron/data/preprocess/preprocess.h"

namespace pentatron::cli {

namespace {

struct PreprocessArguments {
  data::PreprocessOptions options;
  std::string tokenizer;
  std::string on_bad_input = "skip";
};

/// One line that is written over on a terminal, a line every ten seconds in a file.
void show(const data::PreprocessProgress& progress) {
  static double told = 0;
  if (log::is_terminal()) {
    log::set_progress(data::to_string(progress));
  } else if (progress.seconds - told >= 10) {
    told = progress.seconds;
    fmt::print(stderr, "{}\n", data::to_string(progress));
  }
}

int run_preprocess(PreprocessArguments arguments) {
  data::PreprocessOptions& options = arguments.options;
  options.tokenizer = data::open_tokenizer(arguments.tokenizer);
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
  fmt::print(stderr, "{}{}\n{}\n", result.resumed ? "resumed; " : "", result.report.to_string(),
             data::to_string(last));
  for (const std::string& prefix : result.prefixes) fmt::print("{}\n", prefix);
  return 0;
}

} // namespace

void add_preprocess(CLI::App& program, Action& chosen) {
  auto arguments = std::make_shared<PreprocessArguments>();
  data::PreprocessOptions& options = arguments->options;
  options.workers = std::max(1u, std::thread::hardware_concurrency());
  CLI::App* verb =
      program.add_subcommand("preprocess", "make a corpus of tokens from files of text");
  verb->add_option("--input", options.inputs,
                   "files (.jsonl, .txt, also .gz and .zst), folders, or - for JSON lines on "
                   "standard input")
      ->required();
  verb->add_option("--tokenizer", arguments->tokenizer,
                   "a tokenizer's file or folder, or bytes: a token a byte")
      ->required();
  verb->add_option("--output", options.output,
                   "the prefix: PREFIX_text_document.bin and .idx are written")
      ->required();
  verb->add_option("--json-keys", options.json_keys,
                   "the members of each JSON line that hold text; a corpus for each")
      ->delimiter(',')
      ->capture_default_str();
  verb->add_flag("--append-eod", options.append_eod, "end every document with the end token");
  verb->add_option("--workers", options.workers, "threads that tokenize")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  verb->add_option("--on-bad-input", arguments->on_bad_input,
                   "skip: leave bad lines out and count them; error: stop at the first")
      ->check(CLI::IsMember({"skip", "error"}))
      ->capture_default_str();
  verb->add_option("--max-document-bytes", options.max_document_bytes,
                   "longer lines and text files are bad input")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 30))
      ->capture_default_str();
  verb->footer("A call that was killed goes on where it was when it is made again.\n"
               "example:\n"
               "  pentatron preprocess --input corpus.jsonl.zst --tokenizer bytes --output "
               "data/corpus --append-eod");
  verb->callback(
      [arguments, &chosen] { chosen = [arguments] { return run_preprocess(*arguments); }; });
}

} // namespace pentatron::cli
