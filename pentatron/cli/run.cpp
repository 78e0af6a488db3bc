#include <CLI/CLI.hpp>

#include <cstdio>

#include <fmt/format.h>

#include "pentatron/base/error.h"
#include "pentatron/cli/commands.h"
#include "pentatron/nn/memory/counting_allocator.h"

namespace pentatron::cli {

ConfigArguments split_arguments(const std::vector<std::string>& arguments) {
  ConfigArguments result;
  for (const std::string& argument : arguments) {
    const size_t equals = argument.find('=');
    const size_t slash = argument.find('/');
    const bool is_override =
        equals != std::string::npos && (slash == std::string::npos || equals < slash);
    (is_override ? result.overrides : result.files).push_back(argument);
  }
  if (result.files.size() > 1) {
    raise<ConfigError>("{} and {} are both taken for configuration files\n  try: one file, and "
                       "key=value for the rest",
                       result.files[0], result.files[1]);
  }
  return result;
}

int run(int argc, char** argv) {
  nn::install_counting_allocator();
  CLI::App program("pentatron trains large transformers.\nEvery verb has --help with an example.",
                   "pentatron");
  program.require_subcommand(1);
  program.set_version_flag("--version", "pentatron " PENTATRON_VERSION);
  Action chosen;
  for (const AddVerb add : {add_train, add_evaluate, add_generate, add_config, add_doctor})
    add(program, chosen);
  try {
    program.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return program.exit(error) == 0 ? 0 : 2;
  }
  try {
    return chosen();
  } catch (const Error& error) {
    fmt::print(stderr, "error: {}\n", error.what());
  } catch (const std::bad_alloc&) {
    fmt::print(
        stderr,
        "error: out of memory\n  try: a smaller train.micro_batch_size, or train.recompute=full\n");
  } catch (const std::exception& error) {
    // Of torch or the standard library; the first line says what, the rest is their call stack.
    const std::string text = error.what();
    fmt::print(stderr, "error: {}\n", text.substr(0, text.find('\n')));
  }
  return 1;
}

} // namespace pentatron::cli
