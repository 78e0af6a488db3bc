#include "pentatron/cli/files/usage_error.h"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "pentatron/base/nearest.h"
#include "pentatron/base/paths.h"
#include "pentatron/base/text.h"
#include "pentatron/cli/files/command_table.h"
#include "pentatron/config/common_names.h"
#include "pentatron/config/megatron_names.h"

namespace pentatron::cli {

namespace {

/// The command that was named, and its name with those above it: "pentatron corpus merge".
struct NamedCommand {
  const CLI::App* app;
  std::string name;

  std::string help() const { return name + " --help"; }
};

NamedCommand named_command(const CLI::App& program) {
  NamedCommand command{&program, program.get_name()};
  while (!command.app->get_subcommands().empty()) {
    command.app = command.app->get_subcommands().front();
    command.name += " " + command.app->get_name();
  }
  return command;
}

bool is_option_word(const std::string& word) {
  return word.size() > 1 && word.starts_with('-');
}

std::vector<std::string> names_below(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* below : app.get_subcommands([](const CLI::App*) { return true; }))
    names.push_back(below->get_name());
  return names;
}

/// "--output" of `--output,-o`; the name of a positional argument.
std::string shown_name(const CLI::Option& option) {
  return option.nonpositional() ? option.get_name() : option.get_name(/*positional=*/true);
}

/// The value that a list of arguments gives to an option by its long name, before it is split.
std::vector<std::string> values_of(const std::vector<std::string>& arguments,
                                   const std::string& name) {
  std::vector<std::string> values;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].starts_with(name + "="))
      values.push_back(arguments[i].substr(name.size() + 1));
    if (arguments[i] == name && i + 1 < arguments.size()) values.push_back(arguments[i + 1]);
  }
  return values;
}

/// Whether it takes all keys of a configuration.
bool takes_keys(const CLI::App& command) {
  return std::ranges::any_of(command.get_options(), [](const CLI::Option* option) {
    return !option->nonpositional() && option->get_name(true) == "config" &&
           option->get_description().find("override") != std::string::npos;
  });
}

/// The settings for an option of Megatron-LM or another program, with its value; empty: it is none.
std::string setting_of(const std::string& name, const std::vector<std::string>& arguments) {
  std::string setting(config::setting_of_megatron(name));
  if (setting.empty()) {
    std::string key = name.substr(name.find_first_not_of('-'));
    std::ranges::replace(key, '-', '_');
    setting = config::setting_of_common_name(key);
  }
  if (setting.empty() || setting.find('=') != std::string::npos || setting.starts_with("--"))
    return setting;
  const std::vector<std::string> values = values_of(arguments, name);
  const bool given = !values.empty() && !values.back().empty() && !is_option_word(values.back());
  return fmt::format("{}={}", setting, given ? values.back() : "VALUE");
}

UsageError unknown_option(const NamedCommand& command, const std::string& word,
                          const std::vector<std::string>& arguments) {
  const std::string typed = word.substr(0, word.find('='));
  const bool keys = takes_keys(*command.app);
  const std::string setting = keys ? setting_of(typed, arguments) : "";
  const std::string_view note = keys ? config::note_on_megatron(typed) : "";
  std::vector<std::string> names;
  for (const CLI::Option* option : command.app->get_options())
    if (option->count() == 0 || option->get_items_expected_max() > 1) // it can be given
      for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  const std::string near = nearest(typed, names);
  return {fmt::format("{} is not an option of {}{}{}", typed, command.name,
                      note.empty() ? "" : ": ", note),
          !setting.empty() ? setting
          : !note.empty()  ? "remove " + typed
          : near.empty()   ? command.help()
                           : near};
}

/// Words that no option or argument took; CLI11 tells of missing ones before.
UsageError unknown_word(const NamedCommand& command, const std::vector<std::string>& words,
                        const std::vector<std::string>& arguments) {
  const auto option = std::ranges::find_if(words, is_option_word);
  if (option != words.end()) return unknown_option(command, *option, arguments);
  if (words.empty()) return {};
  return {fmt::format("{} takes no argument {}", command.name, words.front()), command.help()};
}

UsageError missing_option(const NamedCommand& command) {
  for (const CLI::Option* option : command.app->get_options()) {
    if (!option->get_required() || option->count() > 0) continue;
    return {fmt::format("{} needs {}{}", command.name,
                        option->nonpositional() ? "" : "the argument ", shown_name(*option)),
            command.help()};
  }
  return {fmt::format("{} needs a command: {}", command.name,
                      fmt::join(names_below(*command.app), ", ")),
          command.help()};
}

UsageError wrong_combination(const NamedCommand& command) {
  for (const CLI::Option* option : command.app->get_options()) {
    if (option->count() == 0) continue;
    for (const CLI::Option* needed : option->get_needs())
      if (needed->count() == 0)
        return {
            fmt::format("{} has no effect without {}", shown_name(*option), shown_name(*needed)),
            "remove " + shown_name(*option)};
    for (const CLI::Option* excluded : option->get_excludes())
      if (excluded->count() > 0)
        return {
            fmt::format("{} cannot be used with {}", shown_name(*option), shown_name(*excluded)),
            "remove " + shown_name(*excluded)};
  }
  return {};
}

/// The option that CLI11's message is about: it begins with the name, or with this text and it.
const CLI::Option* option_of(const CLI::App& app, std::string_view message) {
  constexpr std::string_view kBefore = "Could not convert: ";
  if (message.starts_with(kBefore)) message.remove_prefix(kBefore.size());
  const CLI::Option* found = nullptr;
  size_t length = 0;
  for (const CLI::Option* option : app.get_options()) {
    std::vector<std::string> names = {option->get_name()};
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
    for (const std::string& name : names)
      if (message.starts_with(name) && name.size() > length) {
        found = option;
        length = name.size();
      }
  }
  return found;
}

std::optional<double> number_of(const std::string& text) {
  double value = 0;
  if (!CLI::detail::lexical_cast(text, value) || !std::isfinite(value)) return std::nullopt;
  return value;
}

/// A whole number that 64 bits do not hold; CLI11 takes the nearest one that they do.
bool overflows(const std::string& text) {
  errno = 0;
  char* end = nullptr;
  std::strtoll(text.c_str(), &end, 10);
  return errno == ERANGE && end == text.c_str() + text.size();
}

/// No number of 0 or more that 64 bits hold; CLI11 takes -1 for the largest of them.
bool overflows_unsigned(const std::string& text) {
  errno = 0;
  char* end = nullptr;
  std::strtoull(text.c_str(), &end, 10);
  return end == text.c_str() + text.size() && (errno == ERANGE || text.starts_with('-'));
}

/// What the values of an option need to be, from the texts by which CLI11 describes its checks.
struct ValueRule {
  std::string text; ///< "an integer from 1 to 1024"
  std::string low, high;
};

ValueRule rule_of(const std::string& type) {
  ValueRule rule{.text = type.starts_with("FLOAT") ? "a number" : "an integer"};
  const size_t open = type.find('['), between = type.find(" - "), close = type.find(']');
  if (type.find("SIZE") != std::string::npos) return {.text = "a size like 500MB or 5GB"};
  if (open != std::string::npos && between != std::string::npos && close != std::string::npos) {
    rule.low = type.substr(open + 1, between - open - 1);
    rule.high = type.substr(between + 3, close - between - 3);
    rule.text += fmt::format(" from {} to {}", rule.low, rule.high);
  } else if (type.find("POSITIVE") != std::string::npos) {
    rule.low = "1";
    rule.text += " greater than 0";
  } else if (type.starts_with("UINT")) {
    rule.low = "0";
    rule.high = "18446744073709551615";
    rule.text += fmt::format(" from {} to {}", rule.low, rule.high);
  } else if (type.find("NONNEGATIVE") != std::string::npos) {
    rule.low = "0";
    rule.text += " of 0 or more";
  }
  return rule;
}

UsageError wrong_value(const NamedCommand& command, const CLI::Option& option) {
  const std::string name = shown_name(option), type = option.get_type_name();
  if (std::ranges::find(option.results(), "") != option.results().end())
    return {name + " is empty", command.help()};
  const std::vector<std::string> choices = choices_of(type);
  if (!choices.empty()) {
    const std::string value = option.results().back();
    const std::string near = nearest(value, choices);
    return {fmt::format("{} {} is not one of {}", name, value, fmt::join(choices, ", ")),
            option.nonpositional() ? fmt::format("{} {}", name, near.empty() ? choices[0] : near)
                                   : command.help()};
  }
  const ValueRule rule = rule_of(type);
  for (const std::string& value : option.results()) {
    const std::optional<double> number = number_of(value);
    const bool low = number && !rule.low.empty() && *number < *number_of(rule.low);
    const bool high = number && !rule.high.empty() && *number > *number_of(rule.high);
    const bool whole = rule.text.starts_with("an integer");
    if (whole && rule.high.empty() && !low && overflows(value))
      return {fmt::format("{} {} is not {} below 2^63", name, value, rule.text), command.help()};
    const bool wrong = low || high || !number || (whole && *number != std::trunc(*number));
    if (!wrong && value != option.results().back()) continue;
    return {fmt::format("{} {} is not {}", name, value, rule.text),
            low || high ? fmt::format("{} {}", name, low ? rule.low : rule.high) : command.help()};
  }
  return {};
}

UsageError wrong_number_of_values(const NamedCommand& command, const CLI::Option& option) {
  const std::string name = shown_name(option);
  if (option.count() > 1)
    return {
        fmt::format("{} is given {} times, but {} takes one", name, option.count(), command.name),
        fmt::format("{} {}", name, option.results().back())};
  return {fmt::format("{} needs a value", name), command.help()};
}

/// Texts, the only values that may be empty, and the key of `config help`, which tells it itself.
bool may_be_empty(const CLI::Option& option) {
  constexpr std::array<std::string_view, 5> kTexts = {"--prompt", "--system", "--text", "--title",
                                                      "key"};
  return std::ranges::find(kTexts, option.get_name()) != kTexts.end();
}

} // namespace

void refuse_misread_values(CLI::App& program) {
  const auto refuse = [](CLI::Option& option, bool (*misread)(const std::string&)) {
    option.check(CLI::Validator(
        [misread](const std::string& value) { return misread(value) ? "misread" : std::string(); },
        ""));
  };
  for (CLI::Option* option : program.get_options()) {
    if (option->get_items_expected_max() > 0 && !may_be_empty(*option))
      refuse(*option, [](const std::string& value) { return value.empty(); });
    if (option->get_type_name().starts_with("INT")) refuse(*option, overflows);
    if (option->get_type_name().starts_with("UINT")) refuse(*option, overflows_unsigned);
  }
  for (CLI::App* below : program.get_subcommands([](const CLI::App*) { return true; }))
    refuse_misread_values(*below);
}

UsageError empty_item(const CLI::App& program, const std::vector<std::string>& arguments) {
  const NamedCommand command = named_command(program);
  for (const CLI::Option* option : command.app->get_options()) {
    if (option->get_delimiter() == '\0' || option->count() == 0) continue;
    for (const std::string& value : values_of(arguments, option->get_name()))
      for (const std::string_view item : pentatron::split(value, option->get_delimiter()))
        if (item.empty())
          return {fmt::format("{} {} has an empty item", option->get_name(), value),
                  command.help()};
  }
  return {};
}

/// Whether no option that excludes this one is given.
bool can_be_given(const CLI::App& command, const std::string& name) {
  const CLI::Option* const option = command.get_option_no_throw(name);
  return option != nullptr &&
         std::ranges::none_of(option->get_excludes(),
                              [](const CLI::Option* other) { return other->count() > 0; });
}

UsageError option_as_key(const CLI::App& program) {
  const NamedCommand command = named_command(program);
  if (takes_keys(*command.app)) return {};
  const auto option_for = [&](std::string name) {
    std::ranges::replace(name, '_', '-');
    for (const CLI::Option* option : command.app->get_options())
      if (std::ranges::find(option->get_lnames(), name) != option->get_lnames().end())
        return "--" + name;
    return std::string();
  };
  for (const CLI::Option* option : command.app->get_options()) {
    if (option->nonpositional() || option->get_name(true) != "config") continue;
    for (const std::string& word : option->results()) {
      const size_t equals = word.find('=');
      const std::string key = word.substr(0, equals);
      if (equals == std::string::npos) { // a text or a file without its option
        const std::string near = is_there(word) && !option_for("file").empty()
                                     ? option_for("file")
                                     : option_for("prompt");
        // The configuration is that of the model, and of these inputs a command takes one.
        const auto given = [&](const char* name) {
          const std::string known = option_for(name);
          return !known.empty() && command.app->get_option(known)->count() > 0;
        };
        const bool one_too_many =
            word.ends_with(".yaml") || given("text") || given("batches") || given("tasks");
        if (!near.empty() && one_too_many)
          return {fmt::format("{} takes no argument {}", command.name, word),
                  "remove " + shell_word(word)};
        if (!near.empty() && can_be_given(*command.app, near))
          return {fmt::format("{} takes no argument {}", command.name, word),
                  fmt::format("{} {}", near, shell_word(word))};
      } else if (const std::string same = option_for(key);
                 !same.empty() && !word.substr(equals + 1).starts_with('{')) { // not a section
        return {fmt::format("{} is an option of {}, not a key", key, command.name),
                fmt::format("{} {}", same, shell_word(word.substr(equals + 1)))};
      }
    }
  }
  return {};
}

UsageError unknown_command(const CLI::App& program) {
  const NamedCommand command = named_command(program);
  const std::vector<std::string> names = names_below(*command.app);
  const std::vector<std::string> words = program.remaining(/*recurse=*/true);
  if (names.empty() || words.empty() || is_option_word(words.front())) return {};
  const std::string near = nearest(words.front(), names);
  return {fmt::format("{} is not a command of {}", words.front(), command.name),
          near.empty() ? command.help() : command.name + " " + near};
}

UsageError usage_error(const CLI::App& program, const CLI::ParseError& error,
                       const std::vector<std::string>& arguments) {
  const NamedCommand command = named_command(program);
  UsageError found = unknown_command(program);
  if (found.message.empty())
    found = unknown_word(command, program.remaining(/*recurse=*/true), arguments);
  if (!found.message.empty()) return found;
  found = wrong_combination(command);
  if (!found.message.empty()) return found;
  if (dynamic_cast<const CLI::RequiredError*>(&error) != nullptr) return missing_option(command);
  if (const CLI::Option* option = option_of(*command.app, error.what()))
    found = option->get_items_expected_max() == 0
                ? UsageError{shown_name(*option) + " takes no value", shown_name(*option)}
            : dynamic_cast<const CLI::ArgumentMismatch*>(&error) != nullptr
                ? wrong_number_of_values(command, *option)
                : wrong_value(command, *option);
  if (found.message.empty()) found = {error.what(), command.help()};
  return found;
}

} // namespace pentatron::cli
