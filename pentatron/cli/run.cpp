#include <CLI/CLI.hpp>

#include <algorithm>
#include <cstdio>

#include <fmt/format.h>

#include "pentatron/base/error.h"
#include "pentatron/cli/commands.h"
#include "pentatron/config/common_names.h"
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
  const auto check = [&](const std::string& path, const std::string& value) {
    const bool asked = std::any_of(more.begin(), more.end(), [&](const std::string& key) {
      return key.ends_with('.') ? path.starts_with(key) : path == key;
    });
    if (asked || path == "dtype" || path == "device" || path == "kernels" ||
        path == "train.num_threads")
      return;
    const char* const tensor = "parallel.tensor_model_parallel_size";
    if (path == "parallel.context_parallel_size" && std::ranges::find(more, tensor) != more.end())
      raise<ConfigError>("{}={} is for training: this command does not divide texts among ranks\n  "
                         "try: parallel.tensor_model_parallel_size={} instead",
                         path, value, value);
    raise<ConfigError>("{}={} has no effect here: this command takes the configuration from the "
                       "model\n  try: remove {}",
                       path, value, path);
  };
  // Also values that are the default; `train={num_threads: 2}` is known by what it changes.
  const std::vector<config::FieldInfo> fields = config::list_fields<trainer::Config>();
  for (const std::string& text : split.overrides) {
    const size_t equals = text.find('=');
    const std::string path = text.substr(0, equals);
    if (std::ranges::find(fields, path, &config::FieldInfo::path) != fields.end()) {
      check(path, text.substr(equals + 1));
    } else if (std::ranges::none_of(fields, [&](const config::FieldInfo& field) {
                 return field.path.starts_with(path + ".");
               })) {
      const std::string_view meant = config::setting_of_common_name(path);
      if (std::ranges::find(more, meant) != more.end())
        raise<ConfigError>("{} is not a key\n  try: {}", path, meant);
      std::string others;
      for (const std::string& key : more)
        others += key.ends_with('.') ? ", any key of " + key.substr(0, key.size() - 1) : ", " + key;
      raise<ConfigError>("{} is not a key of this command, which takes the configuration from the "
                         "model\n  try: one of dtype, device, kernels, train.num_threads{}",
                         path, others);
    }
  }
  const trainer::Config config = trainer::load_config(std::nullopt, split.overrides, base, ranks);
  const bool bytes = config.tokenizer.type == data::TokenizerType::kBytes; // tokenizer.path=bytes
  for (const config::Difference& d : config::diff(base, config))
    check(bytes && d.path == "tokenizer.type" ? "tokenizer.path" : d.path, d.after);
  return config;
}

int run(int argc, char** argv) {
  nn::install_counting_allocator();
  std::vector<Verb> verbs = {{"train", add_train},       {"finetune", add_finetune},
                             {"evaluate", add_evaluate}, {"generate", add_generate},
                             {"chat", add_chat},         {"serve", add_serve},
                             {"convert", add_convert},   {"checkpoint", add_checkpoint},
                             {"config", add_config},     {"doctor", add_doctor}};
  verbs.insert(verbs.begin() + 6, file_verbs().begin(), file_verbs().end());
  verbs.push_back({"inspect quantize", add_quantize}); // behind inspect
  return run_program(argc, argv, verbs);
}

} // namespace pentatron::cli
