#include <CLI/CLI.hpp>

#include <algorithm>
#include <cstdio>

#include <fmt/format.h>
#include <unistd.h>

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

trainer::Config with_runtime_keys(const std::vector<std::string>& arguments, trainer::Config base,
                                  const std::vector<std::string>& more, int ranks) {
  const ConfigArguments split = split_arguments(arguments);
  if (!split.files.empty()) {
    raise<ConfigError>("{} is not expected here: the configuration comes with the model\n  try: "
                       "dtype=fp32, device=cpu or train.num_threads=2",
                       split.files[0]);
  }
  const trainer::Config config = trainer::load_config(std::nullopt, split.overrides, base, ranks);
  for (const config::Difference& d : config::diff(base, config)) {
    const bool asked = std::any_of(more.begin(), more.end(), [&](const std::string& key) {
      return key.ends_with('.') ? d.path.starts_with(key) : d.path == key;
    });
    if (!asked && d.path != "dtype" && d.path != "device" && d.path != "train.num_threads") {
      raise<ConfigError>("{}={} has no effect here: the configuration comes with the model\n  try: "
                         "dtype=fp32, device=cpu or train.num_threads=2",
                         d.path, d.after);
    }
  }
  return config;
}

std::string for_terminal(std::string text) {
  if (::isatty(STDOUT_FILENO) == 0) return text;
  for (char& c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if ((byte < 0x20 && c != '\n' && c != '\t') || byte == 0x7f) c = '?';
  }
  return text;
}

namespace {

bool is_verb(const CLI::App& program, const std::string& name) {
  const auto verbs = program.get_subcommands([](const CLI::App*) { return true; });
  return std::any_of(verbs.begin(), verbs.end(),
                     [&](const CLI::App* verb) { return verb->get_name() == name; });
}

std::vector<std::string> arguments_of_program; ///< set once, before any thread is started

/// CLI11 only says that a verb is required.
std::string wrong_verb(const CLI::App& program, int argc, char** argv) {
  if (argc < 2) return "no verb is given";
  const std::string first = argv[1];
  if (first.starts_with('-') || is_verb(program, first)) return {};
  return first + " is not a verb of pentatron";
}

int fail(const std::string& message, const std::string& remedy, int status) {
  fmt::print(stderr, "error: {}\n", message);
  if (!remedy.empty()) fmt::print(stderr, "  try: {}\n", remedy);
  return status;
}

} // namespace

const std::vector<std::string>& command_line() {
  return arguments_of_program;
}

int run(int argc, char** argv) {
  arguments_of_program.assign(argv + std::min(argc, 1), argv + argc);
  nn::install_counting_allocator();
  CLI::App program("pentatron trains large transformers.\nEvery verb has --help with an example.",
                   "pentatron");
  program.require_subcommand(1);
  program.set_version_flag("--version", "pentatron " PENTATRON_VERSION);
  Action chosen;
  for (const AddVerb add :
       {add_train, add_evaluate, add_generate, add_chat, add_preprocess, add_tokenize, add_corpus,
        add_inspect, add_checkpoint, add_convert, add_config, add_doctor})
    add(program, chosen);
  if (const std::string wrong = wrong_verb(program, argc, argv); !wrong.empty())
    return fail(wrong, "pentatron --help", 2);
  try {
    program.parse(argc, argv);
  } catch (const CLI::Success& help) { // --help, --version
    return program.exit(help);
  } catch (const CLI::ParseError& error) {
    const bool of_verb = is_verb(program, argv[1]);
    return fail(error.what(),
                fmt::format("pentatron {}--help", of_verb ? argv[1] + std::string(" ") : ""), 2);
  }
  try {
    return chosen();
  } catch (const Error& error) {
    return fail(error.what(), "", 1);
  } catch (const std::bad_alloc&) {
    return fail("out of memory", "a smaller train.micro_batch_size, or train.recompute=full", 1);
  } catch (const std::exception& error) {
    // Of torch or the standard library; the first line says what, the rest is their call stack.
    const std::string text = error.what();
    return fail(text.substr(0, text.find('\n')), "", 1);
  }
}

} // namespace pentatron::cli
