/// The commands that run models, one file each.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "pentatron/cli/files/verbs.h"
#include "pentatron/trainer/config.h"

namespace pentatron::cli {

void add_train(CLI::App& program, Action& chosen);
void add_finetune(CLI::App& program, Action& chosen);
void add_evaluate(CLI::App& program, Action& chosen);
void add_generate(CLI::App& program, Action& chosen);
void add_chat(CLI::App& program, Action& chosen);
void add_serve(CLI::App& program, Action& chosen);
void add_config(CLI::App& program, Action& chosen);
void add_doctor(CLI::App& program, Action& chosen);
void add_checkpoint(CLI::App& program, Action& chosen);
void add_convert(CLI::App& program, Action& chosen);
/// A command of `inspect`, which is there already.
void add_quantize(CLI::App& program, Action& chosen);

/// Runs the program with all commands.
int run(int argc, char** argv);

/// Splits positional arguments into files and key=value overrides, each in their order.
struct ConfigArguments {
  std::vector<std::string> files, overrides;
};
ConfigArguments split_arguments(const std::vector<std::string>& arguments);

/// `base` with the keys that matter when a model only runs: dtype, device, kernels and
/// train.num_threads, and those of `more` (a section by its name and a point). Throws ConfigError
/// for any other.
trainer::Config with_runtime_keys(const std::vector<std::string>& arguments, trainer::Config base,
                                  const std::vector<std::string>& more = {}, int ranks = 1);

/// The folder of a checkpoint: `folder` itself, or the latest checkpoint of a run. Throws
/// CheckpointError if no checkpoint is found.
std::filesystem::path one_checkpoint(const std::string& folder);

} // namespace pentatron::cli
