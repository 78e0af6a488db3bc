#include <CLI/CLI.hpp>

#include <fmt/format.h>

#include "pentatron/base/error.h"
#include "pentatron/cli/commands.h"
#include "pentatron/models/presets.h"
#include "pentatron/trainer/config.h"

namespace pentatron::cli {

namespace {

struct ConfigVerbArguments {
  std::string what = "show", section;
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

std::string diff(const ConfigVerbArguments& a) {
  const size_t count = a.config.size();
  if (count == 0 || count > 2)
    raise<ConfigError>(
        "config diff takes one or two files\n  try: pentatron config diff a.yaml b.yaml");
  const trainer::Config before = count == 2 ? load({a.config[0]}) : trainer::Config{};
  return config::to_text(config::diff(before, load({a.config.back()})));
}

std::string help(const ConfigVerbArguments& a) {
  return config::help<trainer::Config>(a.section);
}
std::string schema(const ConfigVerbArguments&) {
  return config::json_schema<trainer::Config>();
}
std::string markdown(const ConfigVerbArguments&) {
  return R"(# Configuration

Every key of a run, as `pentatron config help` shows them. A run takes a YAML file, `section.key=value` on the command
line, or both; later ones win. This page is made from the program: `pentatron config markdown > docs/configuration.md`.

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
  if (std::string_view(argument) == "section") {
    page->add_option("section", arguments->section, "only this section, e.g. optimizer");
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
  add_page(*verb, chosen, "show", "the whole configuration after presets, file and overrides",
           show_all, "a YAML file and key=value overrides");
  add_page(*verb, chosen, "diff",
           "what two files change; of one file, what it changes from the defaults", diff,
           "one or two YAML files");
  add_page(*verb, chosen, "help", "every key with default and meaning", help, "section");
  add_page(*verb, chosen, "schema", "JSON schema for editors", schema, "");
  add_page(*verb, chosen, "markdown", "the reference page of the documentation", markdown, "");
  add_page(*verb, chosen, "presets", "named models", presets, "");
  verb->footer("example: pentatron config help optimizer");
}

} // namespace pentatron::cli
