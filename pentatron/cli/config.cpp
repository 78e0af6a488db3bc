#include <CLI/CLI.hpp>

#include <algorithm>
#include <filesystem>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "pentatron/base/error.h"
#include "pentatron/base/log.h"
#include "pentatron/checkpoint/sharded/manifest.h"
#include "pentatron/cli/commands.h"
#include "pentatron/cli/files/command_table.h"
#include "pentatron/evaluation/tasks/read_tasks.h"
#include "pentatron/models/presets.h"
#include "pentatron/trainer/config.h"
#include "pentatron/trainer/run_files.h"

namespace pentatron::cli {

namespace {

namespace fs = std::filesystem;

struct ConfigVerbArguments {
  std::vector<std::string> key; ///< or section, or words
  std::vector<std::string> config;
  bool origin = false;
};

/// "key: value  # where it comes from" for every key.
std::string with_origins(const trainer::Config& config, const config::Violations& origins) {
  const trainer::Config defaults;
  std::string text;
  for (const config::FieldInfo& field : config::list_fields<trainer::Config>()) {
    const std::string value = config::get(config, field.path);
    std::string where = origins.where(field.path);
    if (where.empty())
      where = value == config::get(defaults, field.path)
                  ? "default"
                  : "preset, loaded model, or default of the model";
    text += fmt::format("{:<60} # {}\n", fmt::format("{}: {}", field.path, value), where);
  }
  return text;
}

std::string show_all(const ConfigVerbArguments& a) {
  const ConfigArguments split = split_arguments(a.config);
  config::Violations origins;
  const trainer::Config config =
      trainer::load_config(split.files, split.overrides, {}, 1, &origins);
  return a.origin ? with_origins(config, origins) : config::to_yaml(config);
}

/// The fewest ranks that a configuration asks for.
int fewest_ranks(const trainer::Config& config) {
  if (!config::fields_hold(config.parallel) || !config::fields_hold(config.ddp)) return 1;
  const parallelize::ParallelConfig& p = config.parallel;
  const int64_t model =
      p.tensor_model_parallel_size * p.pipeline_model_parallel_size * p.context_parallel_size;
  const int64_t most = int64_t{1} << 30;
  return static_cast<int>(
      std::min(most, std::min(model, most) *
                         std::min(config.ddp.num_distributed_optimizer_instances, most)));
}

/// The configuration of a YAML file, or the one that a run folder or a checkpoint holds.
trainer::Config read_config(const std::string& where) {
  if (!fs::exists(where))
    raise<ConfigError>("{} does not exist\n  try: the path of a YAML file, a run folder or a "
                       "checkpoint",
                       where);
  trainer::Config config;
  config::Violations violations;
  if (!fs::is_directory(where)) {
    config::apply_file(config, where, violations); // load_config() reports the violations
    return trainer::load_config(std::vector<std::string>{where}, {}, {}, fewest_ranks(config));
  }
  if (const fs::path file = fs::path(where) / trainer::kConfigFile; fs::exists(file)) {
    config::apply_file(config, file, violations);
  } else {
    const fs::path folder = one_checkpoint(where);
    config::apply_yaml(config, checkpoint::read_manifest(folder).config_yaml, folder.string(),
                       violations);
  }
  // Another version may have written it.
  if (!violations.empty()) log::warning("{}", violations.text());
  return config;
}

std::string diff(const ConfigVerbArguments& a) {
  if (a.config.empty() || a.config.size() > 2)
    raise<ConfigError>("config diff compares two configurations, but {} were given\n  try: "
                       "pentatron config diff a.yaml b.yaml",
                       a.config.size());
  const trainer::Config before =
      a.config.size() == 2 ? read_config(a.config[0]) : trainer::Config{};
  const auto differences = config::diff(before, read_config(a.config.back()));
  if (differences.empty()) log::info("the configurations are equal");
  return config::to_text(differences);
}

std::string help(const ConfigVerbArguments& a) {
  if (std::ranges::find(a.key, "") != a.key.end())
    raise<ConfigError>("the word to search for is empty\n  try: pentatron config help");
  return config::help<trainer::Config>(fmt::format("{}", fmt::join(a.key, " ")));
}
std::string schema(const ConfigVerbArguments&) {
  return config::json_schema<trainer::Config>();
}
std::string markdown(const ConfigVerbArguments&) {
  return R"(# Configuration

This page lists all configuration keys; `pentatron config help` shows them too. A run reads any number of YAML files and
`section.key=value` settings on the command line ([cli.md](cli.md#configuration-files)). The page is generated with
`pentatron config markdown > docs/configuration.md`.

)" + config::markdown<trainer::Config>();
}
std::string presets(const ConfigVerbArguments&) {
  std::string text;
  for (const std::string& name : models::preset_names()) {
    text += fmt::format("{:<16} {:>8.2f} B parameters\n", name,
                        static_cast<double>(models::preset(name).num_parameters()) / 1e9);
  }
  return text;
}

/// What tab completion offers.
std::string table_of_commands(const CLI::App& program) {
  std::vector<KeyOfConfig> keys;
  for (const config::FieldInfo& field : config::list_fields<trainer::Config>())
    keys.push_back({.name = field.path,
                    .values = field.values,
                    .text = field.type == "a string",
                    .list = field.type.starts_with("a list")});
  for (KeyOfConfig& key : keys) {
    if (key.name == "model.preset") key.values = models::preset_names();
    if (key.name == "eval.tasks") key.values = evaluation::task_names();
  }
  return dump_json(command_table(program, keys, {{"--tasks", evaluation::task_names()}})) + "\n";
}

void add_page(CLI::App& verb, Action& chosen, const char* name, const char* about,
              std::string (*make)(const ConfigVerbArguments&), const char* argument,
              const char* example) {
  auto arguments = std::make_shared<ConfigVerbArguments>();
  CLI::App* page = verb.add_subcommand(name, about);
  if (make == help) {
    page->add_option("key", arguments->key, argument);
  } else if (!std::string_view(argument).empty()) {
    page->add_option("config", arguments->config, argument);
  }
  if (make == show_all)
    page->add_flag("--origin", arguments->origin,
                   "print one line per key, with the file and line that set it");
  page->footer(example);
  page->callback([arguments, make, &chosen] {
    chosen = [arguments, make] {
      const std::string text = make(*arguments);
      fmt::print("{}{}", text, text.empty() || text.back() == '\n' ? "" : "\n");
      return 0;
    };
  });
}

} // namespace

void add_config(CLI::App& program, Action& chosen) {
  CLI::App* verb = program.add_subcommand("config", "show, compare and explain configurations");
  verb->require_subcommand(1);
  add_page(
      *verb, chosen, "show", "print the complete configuration of YAML files, settings and preset",
      show_all,
      "YAML files and key=value settings; later ones override earlier ones, and settings override "
      "files",
      "examples:\n"
      "  pentatron config show examples/quickstart.yaml seed=7\n"
      "  pentatron config show examples/quickstart.yaml --origin");
  add_page(*verb, chosen, "diff",
           "list the keys that differ between two configurations, or between one and the defaults",
           diff, "one or two configurations: YAML files, run folders or checkpoints",
           "example: pentatron config diff examples/quickstart.yaml");
  add_page(*verb, chosen, "help", "explain configuration keys", help,
           "a section, a key, or words to search for; default: all keys",
           "example: pentatron config help optimizer");
  add_page(*verb, chosen, "schema", "print the JSON schema, for editors", schema, "",
           "example: pentatron config schema > schema.json");
  add_page(*verb, chosen, "markdown", "print docs/configuration.md", markdown, "",
           "example: pentatron config markdown > configuration.md");
  add_page(*verb, chosen, "presets", "list the built-in models", presets, "",
           "example: pentatron config presets");
  verb->add_subcommand("commands", "print all commands, options and keys as JSON")
      ->footer("`pentatron completion` is generated from this output.\nexample: pentatron config "
               "commands > commands.json")
      ->callback([&program, &chosen] {
        chosen = [&program] {
          fmt::print("{}", table_of_commands(program));
          return 0;
        };
      });
  verb->footer("examples:\n"
               "  pentatron config help optimizer.lr\n"
               "  pentatron config help warmup\n"
               "  pentatron config diff runs/a runs/b");
}

} // namespace pentatron::cli
