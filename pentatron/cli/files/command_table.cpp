#include "pentatron/cli/files/command_table.h"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <set>

#include "pentatron/base/text.h"

namespace pentatron::cli {

namespace {

bool is_number(const std::string& type) {
  return type.starts_with("INT") || type.starts_with("UINT") || type.starts_with("FLOAT");
}

using OfferedNames = std::map<std::string, std::vector<std::string>>;

Json describe_option(const CLI::Option& option, const OfferedNames& offered) {
  Json names = Json::array();
  for (const std::string& name : option.get_snames()) names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) names.push_back("--" + name);
  const std::string type = option.get_type_name();
  const bool value = option.get_items_expected_max() > 0;
  std::vector<std::string> choices = choices_of(type);
  const bool files = value && choices.empty() && !is_number(type);
  if (const auto more = offered.find(option.get_name()); more != offered.end())
    choices = more->second;
  return {{"names", names},     {"help", option.get_description()},
          {"value", value},     {"list", option.get_delimiter() != '\0'},
          {"choices", choices}, {"files", files}};
}

/// The words of a help text that are keys, in its order.
std::vector<std::string> keys_in(const std::string& help, const std::set<std::string>& keys) {
  std::vector<std::string> found;
  for (const std::string_view word : split(help, ' ')) {
    std::string name(word);
    while (!name.empty() && (name.back() == ',' || name.back() == ';')) name.pop_back();
    if (keys.contains(name)) found.push_back(name);
  }
  return found;
}

Json describe_command(const CLI::App& app, const std::set<std::string>& keys,
                      const OfferedNames& offered) {
  Json command = {{"name", app.get_name()},
                  {"help", app.get_description()},
                  {"options", Json::array()},
                  {"commands", Json::array()},
                  {"arguments", {{"files", false}, {"keys", Json()}, {"choices", Json::array()}}}};
  Json& arguments = command["arguments"];
  for (const CLI::Option* option : app.get_options()) {
    if (option->nonpositional()) {
      command["options"].push_back(describe_option(*option, offered));
      continue;
    }
    const std::string name = option->get_name(true);
    const bool takes_keys = name == "config" || name == "key";
    if (takes_keys) {
      const std::vector<std::string> named = keys_in(option->get_description(), keys);
      arguments["keys"] = named.empty() ? Json(std::vector(keys.begin(), keys.end())) : Json(named);
    }
    const std::vector<std::string> choices = choices_of(option->get_type_name());
    for (const std::string& choice : choices) arguments["choices"].push_back(choice);
    const bool yaml = option->get_description().find("YAML") != std::string::npos;
    if (choices.empty() && (!takes_keys || yaml)) arguments["files"] = true;
  }
  for (const CLI::App* below : app.get_subcommands([](const CLI::App*) { return true; }))
    command["commands"].push_back(describe_command(*below, keys, offered));
  return command;
}

} // namespace

std::vector<std::string> choices_of(const std::string& type) {
  const size_t open = type.find('{'), close = type.find('}');
  std::vector<std::string> choices;
  if (open == std::string::npos || close == std::string::npos || close < open) return choices;
  const std::string inside = type.substr(open + 1, close - open - 1);
  for (const std::string_view one : split(inside, ',')) choices.emplace_back(trim(one));
  return choices;
}

Json command_table(const CLI::App& program, const std::vector<KeyOfConfig>& keys,
                   const OfferedNames& offered) {
  std::set<std::string> names;
  Json described = Json::array();
  for (const KeyOfConfig& key : keys) {
    names.insert(key.name);
    described.push_back(
        {{"name", key.name}, {"values", key.values}, {"text", key.text}, {"list", key.list}});
  }
  Json table = describe_command(program, names, offered);
  table["keys"] = std::move(described);
  return table;
}

std::filesystem::path command_table_file() {
  std::error_code error;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  const std::filesystem::path below = "share/pentatron/commands.json";
  const std::filesystem::path folder = program.parent_path();
  if (std::filesystem::path built = folder / below; std::filesystem::exists(built, error))
    return built;
  return folder.parent_path() / below;
}

} // namespace pentatron::cli
