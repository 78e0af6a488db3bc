/// What is wrong with a command line that could not be parsed, in pentatron's words.
#pragma once

#include <string>

namespace CLI {
class App;
class ParseError;
} // namespace CLI

namespace pentatron::cli {

struct UsageError {
  std::string message; ///< one sentence; empty if nothing is wrong
  std::string remedy;  ///< what to try
};

/// A word that is not a command, as in `pentatron trian` and `pentatron corpus mrege`. CLI11 prints
/// help for `pentatron trian --help`.
UsageError unknown_command(const CLI::App& program);

/// What `error` says about the command line that `program` has parsed.
UsageError usage_error(const CLI::App& program, const CLI::ParseError& error);

} // namespace pentatron::cli
