/// The subcommands of the program, one file each.
///
/// Results go to standard output, everything else to standard error. Exit status: 0, 1 for an error
/// while working, 2 for a command line that cannot be understood.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "pentatron/trainer/config.h"

namespace CLI {
class App;
}

namespace pentatron::cli {

/// What a verb does after its command line was read; returns the exit status.
using Action = std::function<int()>;

/// Adds one verb to the program; `chosen` becomes its action if the user names it.
using AddVerb = void (*)(CLI::App& program, Action& chosen);

void add_train(CLI::App& program, Action& chosen);
void add_evaluate(CLI::App& program, Action& chosen);
void add_generate(CLI::App& program, Action& chosen);
void add_chat(CLI::App& program, Action& chosen);
void add_config(CLI::App& program, Action& chosen);
void add_doctor(CLI::App& program, Action& chosen);
void add_preprocess(CLI::App& program, Action& chosen);
void add_corpus(CLI::App& program, Action& chosen);
void add_inspect(CLI::App& program, Action& chosen);
void add_tokenize(CLI::App& program, Action& chosen);
void add_checkpoint(CLI::App& program, Action& chosen);
void add_convert(CLI::App& program, Action& chosen);

/// Runs the program. Errors become one message on standard error and status 1 (2: the command line
/// itself is wrong).
int run(int argc, char** argv);

/// The arguments that run() was given, without the program's name.
const std::vector<std::string>& command_line();

/// Splits positional arguments into an optional file and key=value overrides.
struct ConfigArguments {
  std::vector<std::string> files, overrides;
};
ConfigArguments split_arguments(const std::vector<std::string>& arguments);

/// `base` with the keys that matter when a model only runs: dtype, device and train.num_threads,
/// and those of `more` (a section by its name and a point). Throws ConfigError for any other.
trainer::Config with_runtime_keys(const std::vector<std::string>& arguments, trainer::Config base,
                                  const std::vector<std::string>& more = {}, int ranks = 1);

/// Text of a model for this terminal: control characters become '?' where standard output is one,
/// so that a model cannot steer it.
std::string for_terminal(std::string text);

} // namespace pentatron::cli
