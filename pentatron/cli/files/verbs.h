/// The verbs that work on files alone, and what all verbs have in common.
///
/// They are built as a separate program without LibTorch, whose loading takes longer than most of
/// their work. Results go to standard output, everything else to standard error. Exit status:
/// exit_status.h.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace CLI {
class App;
}

namespace pentatron::cli {

/// What a verb does after its command line was read; returns the exit status.
using Action = std::function<int()>;

/// Adds a verb to the program; `chosen` becomes its action if the user names it.
struct Verb {
  std::string_view name;
  void (*add)(CLI::App& program, Action& chosen);
  /// Of a verb of file_verbs() that has more commands elsewhere: those that need no LibTorch.
  std::span<const std::string_view> commands = {};
};

/// tokenize, preprocess, corpus, inspect, plot and completion
std::span<const Verb> file_verbs();

/// Runs the program with these verbs. Errors become one message on standard error and a status.
int run_program(int argc, char** argv, std::span<const Verb> verbs);

/// The version of pentatron, "0.1.0".
const char* program_version();

/// The arguments that run_program() was given, without the program's name.
const std::vector<std::string>& command_line();

} // namespace pentatron::cli
