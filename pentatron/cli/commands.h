/// The subcommands of the program, one file each.
#pragma once

#include <functional>
#include <string>
#include <vector>

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
void add_config(CLI::App& program, Action& chosen);
void add_doctor(CLI::App& program, Action& chosen);

/// Runs the program. Errors become one message on standard error and status 1 (2: the command line
/// itself is wrong).
int run(int argc, char** argv);

/// Splits positional arguments into an optional file and key=value overrides.
struct ConfigArguments {
  std::vector<std::string> files, overrides;
};
ConfigArguments split_arguments(const std::vector<std::string>& arguments);

} // namespace pentatron::cli
