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

/// Makes CLI11 refuse the values of options and arguments of the program and its commands that it
/// would take for others: an empty one for 0 or for none, a whole number of more than 64 bits for
/// the nearest that fits. Texts alone (--prompt, --system, --text, --title) may be empty.
void refuse_misread_values(CLI::App& program);

/// An empty item of a list such as `--shares 99,,1`, which CLI11 leaves out. `arguments` are those
/// that `program` has parsed.
UsageError empty_item(const CLI::App& program, const std::vector<std::string>& arguments);

/// An option written as a key, as in `pentatron generate MODEL temperature=0`, or a text without
/// its option, of a command that takes few keys.
UsageError option_as_key(const CLI::App& program);

/// Converts `error`, about the command line that `program` has parsed. For an option of Megatron-LM
/// the suggestion is the equivalent key.
UsageError usage_error(const CLI::App& program, const CLI::ParseError& error,
                       const std::vector<std::string>& arguments);

} // namespace pentatron::cli
