/// What is wrong with a command line that could not be parsed, in pentatron's words.
#pragma once

#include <string>
#include <vector>

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

/// Makes CLI11 refuse an empty value of any option and argument of the program and its commands,
/// which it would take for 0 or for none. Texts alone (--prompt, --system, --text, --title) may be
/// empty.
void refuse_empty_values(CLI::App& program);

/// An empty item of a list such as `--shares 99,,1`, which CLI11 leaves out. `arguments` are those
/// that `program` has parsed.
UsageError empty_item(const CLI::App& program, const std::vector<std::string>& arguments);

/// What `error` says about the command line that `program` has parsed.
UsageError usage_error(const CLI::App& program, const CLI::ParseError& error);

} // namespace pentatron::cli
