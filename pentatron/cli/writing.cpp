#include "pentatron/cli/writing.h"

#include <CLI/CLI.hpp>

#include <cstdio>

#include <fmt/format.h>

#include "pentatron/base/error.h"
#include "pentatron/cli/files/terminal.h"

namespace pentatron::cli {

void add_writing_options(CLI::App& verb, WritingOptions& writing) {
  generate::Options& options = writing.options;
  generate::Sampling& sampling = options.sampling;
  verb.add_option("--max-new-tokens", options.max_new_tokens,
                  "maximum number of tokens to generate")
      ->capture_default_str();
  verb.add_option("--temperature", sampling.temperature,
                  "sampling temperature; 0: always take the most likely token")
      ->capture_default_str();
  verb.add_option("--top-k", sampling.top_k, "sample from the k most likely tokens; 0: all tokens")
      ->capture_default_str();
  verb.add_option("--top-p", sampling.top_p,
                  "sample from the smallest set of most likely tokens whose total probability "
                  "reaches this value")
      ->capture_default_str();
  verb.add_option("--min-p", sampling.min_p,
                  "sample from tokens with at least this fraction of the probability of the most "
                  "likely token; 0: all tokens")
      ->capture_default_str();
  verb.add_option("--repetition-penalty", sampling.repetition_penalty,
                  "above 1: make tokens that already occur in the text less likely; 1: no penalty")
      ->capture_default_str();
  verb.add_option("--stop", writing.stops,
                  "stop when this string is generated; repeat the option for several strings")
      ->allow_extra_args(false);
  verb.add_option("--seed", options.seed, "random seed for sampling")->capture_default_str();
  add_cache_option(verb, options.fp8_cache);
}

void check_writing(const WritingOptions& writing) {
  generate::check(writing.options);
  const generate::Sampling &given = writing.options.sampling, usual;
  if (given.temperature != 0) return;
  const char* const idle = given.top_k != usual.top_k && given.top_k > 0   ? "--top-k"
                           : given.top_p != usual.top_p && given.top_p < 1 ? "--top-p"
                           : given.min_p != usual.min_p && given.min_p > 0 ? "--min-p"
                                                                           : nullptr;
  if (idle != nullptr)
    raise<ConfigError>("{0} has no effect with --temperature 0, which always takes the most likely "
                       "token\n  try: --temperature 1, or remove {0}",
                       idle);
}

void add_cache_option(CLI::App& verb, bool& fp8_cache) {
  verb.add_option_function<std::string>(
          "--kv-cache-dtype", [&](const std::string& type) { fp8_cache = type == "fp8"; },
          "data type of the cached keys and values; auto: the type of the model; fp8: one byte per "
          "number (e4m3), with one scale per token and head")
      ->check(CLI::IsMember({"auto", "fp8"}))
      ->default_str("auto");
}

void show(const std::string& text) {
  fmt::print("{}", for_terminal(text));
  std::fflush(stdout);
}

} // namespace pentatron::cli
