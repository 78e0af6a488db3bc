#include <CLI/CLI.hpp>

#include <cmath>
#include <filesystem>

#include <fmt/format.h>

#include "pentatron/base/error.h"
#include "pentatron/base/json.h"
#include "pentatron/base/paths.h"
#include "pentatron/base/progress.h"
#include "pentatron/cli/files/file_verbs.h"
#include "pentatron/data/indexed/corpus_tools.h"
#include "pentatron/data/indexed/indexed_writer.h"

namespace pentatron::cli {

namespace {

struct CorpusArguments {
  std::vector<std::string> prefixes;
  std::string prefix, output;
  std::vector<double> shares;
  int64_t vocab_size = 0;
  bool overwrite = false;
};

/// Shown while the function runs.
data::TokenProgress shown(Progress& progress) {
  return [&](int64_t done, int64_t total) {
    progress.set_total(total);
    progress.update(done);
  };
}

Json summary_of(const std::string& prefix) {
  const data::IndexedDataset corpus(data::without_ending(prefix));
  const data::CorpusSummary s = data::summarize_corpus(corpus);
  return {{"prefix", corpus.prefix()},
          {"dtype", std::string(data::name_of(s.dtype))},
          {"documents", s.documents},
          {"empty_documents", s.empty_documents},
          {"sequences", s.sequences},
          {"tokens", s.tokens},
          {"shortest_sequence", s.shortest},
          {"longest_sequence", s.longest},
          {"modes", s.modes},
          {"bin_bytes", s.data_bytes},
          {"idx_bytes", s.index_bytes}};
}

void check_outputs(const std::vector<std::string>& prefixes, bool overwrite) {
  for (const std::string& prefix : prefixes) {
    require_output(prefix, "--output");
    data::require_corpus(prefix); // what is not one cannot be replaced
    if (!overwrite) refuse_existing(data::corpus_files(prefix));
  }
}

int merge(const CorpusArguments& a) {
  std::vector<std::string> prefixes;
  for (const std::string& prefix : a.prefixes) prefixes.push_back(data::without_ending(prefix));
  const std::string output = data::without_ending(a.output);
  check_outputs({output}, a.overwrite);
  Progress progress("merging", 0);
  data::merge_corpora(prefixes, output, shown(progress), a.overwrite);
  progress.clear();
  fmt::print("{}\n", dump_json(summary_of(output)));
  return 0;
}

int split(const CorpusArguments& a) {
  for (const double share : a.shares)
    if (!(share > 0) || !std::isfinite(share))
      raise<ConfigError>("--shares {} is not a number above 0\n  try: --shares 90,10", share);
  const std::vector<std::string> parts =
      data::names_of_parts(data::without_ending(a.output), a.shares.size());
  check_outputs(parts, a.overwrite);
  // A part of an earlier split, beside these, would be read twice.
  const std::string stale = fmt::format("{}_{}", data::without_ending(a.output), parts.size());
  if (std::error_code error; std::filesystem::exists(stale + ".idx", error))
    raise<ConfigError>(
        "{}.idx exists, from an earlier split into more parts\n  try: another --output", stale);
  Progress progress("splitting", 0);
  data::split_corpus_files(data::without_ending(a.prefix), a.shares, parts, shown(progress),
                           a.overwrite);
  progress.clear();
  for (const std::string& part : parts) fmt::print("{}\n", dump_json(summary_of(part)));
  return 0;
}

int inspect(const CorpusArguments& a) {
  for (const std::string& prefix : a.prefixes) fmt::print("{}\n", dump_json(summary_of(prefix)));
  return 0;
}

int verify(const CorpusArguments& a) {
  for (const std::string& prefix : a.prefixes) {
    const data::IndexedDataset corpus(data::without_ending(prefix));
    Progress progress("verifying", 0);
    const data::CorpusCheck check = data::verify_corpus(corpus, a.vocab_size, shown(progress));
    progress.clear();
    fmt::print("{}\n", dump_json(Json{{"prefix", corpus.prefix()},
                                      {"tokens", corpus.num_tokens()},
                                      {"lowest_token", check.lowest_token},
                                      {"highest_token", check.highest_token},
                                      {"bin_crc32c", fmt::format("{:08x}", check.data_crc32c)},
                                      {"idx_crc32c", fmt::format("{:08x}", check.index_crc32c)}}));
  }
  return 0;
}

CLI::App* add(CLI::App& verb, Action& chosen, const char* name, const char* about,
              int (*action)(const CorpusArguments&), std::shared_ptr<CorpusArguments> a) {
  CLI::App* sub = verb.add_subcommand(name, about);
  sub->callback([a, action, &chosen] { chosen = [a, action] { return action(*a); }; });
  return sub;
}

} // namespace

void add_corpus(CLI::App& program, Action& chosen) {
  CLI::App* verb =
      program.add_subcommand("corpus", "merge, split, inspect and verify corpora of tokens");
  verb->require_subcommand(1);
  auto a = std::make_shared<CorpusArguments>();
  CLI::App* sub = add(*verb, chosen, "merge", "merge several corpora into one", merge, a);
  sub->add_option("prefixes", a->prefixes,
                  "corpora to merge, in order: prefixes of PREFIX.bin and PREFIX.idx")
      ->required();
  sub->add_option("--output", a->output, "prefix of the new corpus")->required();
  sub->add_flag("--overwrite", a->overwrite, "replace an existing corpus");
  sub->footer("example: pentatron corpus merge data/a data/b --output data/both");

  sub = add(*verb, chosen, "split", "split the documents of a corpus into parts", split, a);
  sub->add_option("prefix", a->prefix, "corpus: prefix of PREFIX.bin and PREFIX.idx")->required();
  sub->add_option("--shares", a->shares,
                  "proportions of documents in the parts, separated by commas")
      ->delimiter(',')
      ->required();
  sub->add_option("--output", a->output,
                  "prefix of the parts: they are written to OUTPUT_0, OUTPUT_1, ...")
      ->required();
  sub->add_flag("--overwrite", a->overwrite, "replace existing parts");
  sub->footer("example: pentatron corpus split data/all --shares 99,1 --output data/part");

  sub = add(*verb, chosen, "inspect", "print a summary of each corpus as JSON", inspect, a);
  sub->add_option("prefixes", a->prefixes, "corpora: prefixes of PREFIX.bin and PREFIX.idx")
      ->required();
  sub->footer("example: pentatron corpus inspect data/corpus_text_document");

  sub = add(*verb, chosen, "verify", "read a corpus completely and check its index and every token",
            verify, a);
  sub->add_option("prefixes", a->prefixes, "corpora: prefixes of PREFIX.bin and PREFIX.idx")
      ->required();
  sub->add_option("--vocab-size", a->vocab_size,
                  "vocabulary size; every token id must be lower; 0 (the default): do not check")
      ->check(CLI::NonNegativeNumber);
  sub->footer("example: pentatron corpus verify data/corpus_text_document --vocab-size 32000");
}

} // namespace pentatron::cli
