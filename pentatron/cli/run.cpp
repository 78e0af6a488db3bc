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
  return result;
}

trainer::Config with_runtime_keys(const std::vector<std::string>& arguments, trainer::Config base,
                                  const std::vector<std::string>& more, int ranks) {
  const ConfigArguments split = split_arguments(arguments);
  if (!split.files.empty()) {
    raise<ConfigError>("{} is not a key=value setting, and this command takes the configuration "
                       "from the model\n  try: dtype=fp32, device=cpu or train.num_threads=2",
                       split.files[0]);
  }
  const trainer::Config config = trainer::load_config(std::nullopt, split.overrides, base, ranks);
  for (const config::Difference& d : config::diff(base, config)) {
    const bool asked = std::any_of(more.begin(), more.end(), [&](const std::string& key) {
      return key.ends_with('.') ? d.path.starts_with(key) : d.path == key;
    });
    if (!asked && d.path != "dtype" && d.path != "device" && d.path != "kernels" &&
        d.path != "train.num_threads") {
      raise<ConfigError>("{}={} has no effect here: this command takes the configuration from the "
                         "model\n  try: dtype=fp32, device=cpu or train.num_threads=2",
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

int run(int argc, char** argv) {
  nn::install_counting_allocator();
  std::vector<Verb> verbs = {{"train", add_train},       {"evaluate", add_evaluate},
                             {"generate", add_generate}, {"chat", add_chat},
                             {"convert", add_convert},   {"checkpoint", add_checkpoint},
                             {"config", add_config},     {"doctor", add_doctor}};
  verbs.insert(verbs.begin() + 4, file_verbs().begin(), file_verbs().end());
  return run_program(argc, argv, verbs);
}

} // namespace pentatron::cli
