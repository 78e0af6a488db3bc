#include <CLI/CLI.hpp>

#include <algorithm>
#include <filesystem>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "pentatron/base/error.h"
#include "pentatron/base/log.h"
#include "pentatron/checkpoint/sharded/manifest.h"
#include "pentatron/cli/commands.h"
#include "pentatron/models/presets.h"
#include "pentatron/trainer/config.h"

namespace pentatron::cli {

namespace {

namespace fs = std::filesystem;

struct ConfigVerbArguments {
  std::vector<std::string> what;
  std::vector<std::string> config;
};

trainer::Config load(const std::vector<std::string>& arguments) {
  const ConfigArguments split = split_arguments(arguments);
  return trainer::load_config(split.files.empty() ? std::nullopt : std::optional(split.files[0]),
                              split.overrides);
}

std::string show_all(const ConfigVerbArguments& a) {
  return config::to_yaml(load(a.config));
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
  trainer::Config config;
  config::Violations violations;
  if (!fs::is_directory(where)) {
    config::apply_file(config, where, violations); // load_config() reports the violations
    return trainer::load_config(where, {}, {}, fewest_ranks(config));
  }
  if (const fs::path file = fs::path(where) / "config.yaml"; fs::exists(file)) {
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
    raise<ConfigError>("config diff compares two configurations, and {} were given\n  try: "
                       "pentatron config diff a.yaml b.yaml",
                       a.config.size());
  const trainer::Config before =
      a.config.size() == 2 ? read_config(a.config[0]) : trainer::Config{};
  const auto differences = config::diff(before, read_config(a.config.back()));
  if (differences.empty()) log::info("the configurations are equal");
  return config::to_text(differences);
}

std::string help(const ConfigVerbArguments& a) {
  return config::help<trainer::Config>(fmt::format("{}", fmt::join(a.what, " ")));
}
std::string schema(const ConfigVerbArguments&) {
  return config::json_schema<trainer::Config>();
}
std::string markdown(const ConfigVerbArguments&) {
  return R"(# Configuration

This page lists all configuration keys; `pentatron config help` shows them too. A run reads a YAML file, `section.key=value`
settings on the command line, or both; later values override earlier ones. The page is generated with
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

void add_page(CLI::App& verb, Action& chosen, const char* name, const char* about,
              std::string (*make)(const ConfigVerbArguments&), const char* argument) {
  auto arguments = std::make_shared<ConfigVerbArguments>();
  CLI::App* page = verb.add_subcommand(name, about);
  if (make == help) {
    page->add_option("what", arguments->what, argument);
  } else if (!std::string_view(argument).empty()) {
    page->add_option("config", arguments->config, argument);
  }
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
  CLI::App* verb =
      program.add_subcommand("config", "show, check, compare and explain configurations");
  verb->require_subcommand(1);
  add_page(*verb, chosen, "show",
           "print the complete configuration of a YAML file, overrides and preset", show_all,
           "a YAML file and key=value overrides");
  add_page(*verb, chosen, "diff",
           "list the keys that differ between two configurations, or between one and the defaults",
           diff, "one or two configurations: YAML files, run folders or checkpoints");
  add_page(*verb, chosen, "help", "explain configuration keys", help,
           "a section, a key, or words to search for; default: all keys");
  add_page(*verb, chosen, "schema", "print the JSON schema, for editors", schema, "");
  add_page(*verb, chosen, "markdown", "print docs/configuration.md", markdown, "");
  add_page(*verb, chosen, "presets", "list the built-in models", presets, "");
  verb->footer("examples:\n"
               "  pentatron config help optimizer.lr\n"
               "  pentatron config help warmup\n"
               "  pentatron config diff runs/a runs/b");
}

} // namespace pentatron::cli
