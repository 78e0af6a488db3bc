#include "pentatron/cli/files/completion.h"

#include <CLI/CLI.hpp>

#include <memory>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "pentatron/base/error.h"
#include "pentatron/base/text.h"
#include "pentatron/cli/files/command_table.h"
#include "pentatron/cli/files/completion_scripts.h"
#include "pentatron/cli/files/file_verbs.h"

namespace pentatron::cli {

namespace {

using Names = std::vector<std::string>;

Names names_of(const Json& list) {
  Names names;
  for (const Json& one : list) names.push_back(one.is_string() ? one : one.at("name"));
  return names;
}

std::string words(const Names& names) {
  return shell_word(fmt::format("{}", fmt::join(names, " ")));
}

/// Calls `use` with "train", "checkpoint inspect" and so on; the program itself is "".
template <class F> void for_each_command(const Json& command, const std::string& path, F&& use) {
  use(path, command);
  for (const Json& below : command.at("commands")) {
    const std::string name = below.at("name");
    for_each_command(below, path.empty() ? name : path + " " + name, use);
  }
}

/// case "$1" in ... of shell functions, an entry for each key.
class CaseFunction {
 public:
  explicit CaseFunction(std::string name) : text_(std::move(name) + "() {\n  case $1 in\n") {}
  void add(const std::string& key, const std::string& printed) {
    text_ += fmt::format("  {}) echo {} ;;\n", shell_word(key), printed);
  }
  std::string finish() { return text_ + "  esac\n}\n"; }

 private:
  std::string text_;
};

/// Functions that both scripts share: what there is to choose from.
std::string common_functions(const Json& table) {
  CaseFunction commands("_pentatron_commands"), options("_pentatron_options"),
      choices("_pentatron_choices"), arguments("_pentatron_arguments"), keys("_pentatron_keys"),
      values("_pentatron_values");
  Names all;
  for (const Json& key : table.at("keys")) {
    const std::string name = key.at("name");
    all.push_back(name);
    if (!key.at("values").empty()) {
      Names offered = names_of(key.at("values"));
      if (key.at("list")) offered.emplace_back("@brackets");
      values.add(name, words(offered));
    } else if (key.at("text")) {
      values.add(name, "@files");
    }
  }
  for_each_command(table, "", [&](const std::string& path, const Json& command) {
    if (!command.at("commands").empty()) commands.add(path, words(names_of(command["commands"])));
    Names names;
    for (const Json& option : command.at("options")) {
      for (const std::string name : option.at("names")) {
        names.push_back(name);
        if (!option.at("value")) continue;
        Names offered = names_of(option.at("choices"));
        if (option.at("files")) offered.emplace_back("@files");
        if (option.at("list") && !offered.empty()) offered.emplace_back("@list");
        choices.add(path + " " + name, offered.empty() ? "@number" : words(offered));
      }
    }
    options.add(path, words(names));
    const Json& takes = command.at("arguments");
    Names kinds = names_of(takes.at("choices"));
    if (takes.at("files")) kinds.emplace_back("@files");
    if (!takes.at("keys").is_null()) {
      kinds.emplace_back("@keys");
      const Names named = names_of(takes.at("keys"));
      if (named.size() < all.size()) keys.add(path, words(named));
    }
    if (!kinds.empty()) arguments.add(path, words(kinds));
  });
  return commands.finish() + options.finish() + choices.finish() + arguments.finish() +
         keys.finish() + values.finish() + "_pentatron_all_keys=" + words(all) + "\n";
}

/// Text inside [...] of a specification of zsh's _arguments.
std::string for_arguments(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '[' || c == ']' || c == ':' || c == '\\') out += '\\';
    out += c;
  }
  return out;
}

/// Sets `specs` (options for _arguments) and `below` (commands for _describe) for a command.
std::string zsh_specifications(const Json& table) {
  std::string out = "_pentatron_specs() {\n  case $1 in\n";
  for_each_command(table, "", [&](const std::string& path, const Json& command) {
    out += fmt::format("  {})\n    specs=(\n", shell_word(path));
    for (const Json& option : command.at("options")) {
      for (const std::string name : option.at("names")) {
        std::string spec = fmt::format("{}{}[{}]", option.at("value") ? "*" : "", name,
                                       for_arguments(option.at("help")));
        if (option.at("value")) {
          const Names choices = names_of(option.at("choices"));
          const bool files = option.at("files");
          const std::string words = fmt::format("{}", fmt::join(choices, " "));
          if (choices.empty())
            spec += files ? ":file:_files" : ":value: ";
          else if (option.at("list"))
            spec += ":value:{ compset -P \"*,\"; compadd -q -S , -- " + words +
                    (files ? "; _files }" : " }");
          else
            spec +=
                files ? ":value:{ compadd -- " + words + "; _files }" : ":value:(" + words + ")";
        }
        out += fmt::format("      {}\n", shell_word(spec));
      }
    }
    out += "    )\n    below=(\n";
    for (const Json& one : command.at("commands"))
      out += fmt::format("      {}\n", shell_word(fmt::format("{}:{}", std::string(one.at("name")),
                                                              std::string(one.at("help")))));
    out += "    ) ;;\n";
  });
  return out + "  esac\n}\n";
}

/// Runs `make`; a table of another form is bad data, not a bug.
template <class F> std::string from_table(F&& make) {
  try {
    return make();
  } catch (const nlohmann::json::exception& error) {
    raise<DataError>("the table of commands is not valid: {}", error.what());
  }
}

int print_completion(const std::string& shell) {
  const std::filesystem::path file = command_table_file();
  std::error_code error;
  if (!std::filesystem::exists(file, error))
    raise<DataError>("{}, which lists the commands, does not exist\n  try: cmake --build, or cmake "
                     "--install, which write it",
                     file.string());
  const Json table = read_json(file);
  fmt::print("{}", shell == "bash" ? bash_completion(table) : zsh_completion(table));
  return 0;
}

} // namespace

std::string bash_completion(const Json& table) {
  return from_table([&] {
    return "# bash completion for pentatron, made by `pentatron completion bash`\n" +
           common_functions(table) + kBashCompletion;
  });
}

std::string zsh_completion(const Json& table) {
  return from_table([&] {
    return "#compdef pentatron\n# made by `pentatron completion zsh`\n" + common_functions(table) +
           zsh_specifications(table) + kZshCompletion;
  });
}

void add_completion(CLI::App& program, Action& chosen) {
  auto shell = std::make_shared<std::string>();
  CLI::App* verb =
      program.add_subcommand("completion", "print a script for tab completion in a shell");
  verb->add_option("shell", *shell, "shell to print the script for")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh"}));
  verb->footer("The script completes commands, options, configuration keys and their values, and "
               "files.\n"
               "examples:\n"
               "  source <(pentatron completion bash)   (in ~/.bashrc)\n"
               "  source <(pentatron completion zsh)    (in ~/.zshrc, after compinit)");
  verb->callback([shell, &chosen] { chosen = [shell] { return print_completion(*shell); }; });
}

} // namespace pentatron::cli
