/// All commands with their options, and all configuration keys, as data. pentatron-torch knows them
/// and writes the table when it is built; `pentatron completion` reads it without LibTorch.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "pentatron/base/json.h"

namespace CLI {
class App;
}

namespace pentatron::cli {

struct KeyOfConfig {
  std::string name;                ///< "optimizer.lr"
  std::vector<std::string> values; ///< of a boolean or an enum; empty: any
  bool text = false;               ///< any text, perhaps a path
  bool list = false;               ///< a list of these values, in brackets
};

/// The values that an option of CLI11's type name takes, "TEXT:{a,b}" to a and b; empty: any.
std::vector<std::string> choices_of(const std::string& type);

/// {"commands": [{"name", "help", "options": [{"names", "help", "value", "list", "choices",
/// "files"}],
///                "arguments": {"choices", "files", "keys"}, "commands": [...]}],
///  "keys": [{"name", "values", "text", "list"}]}
///
/// An argument takes choices where its help has them in braces, keys where it is called `config` or
/// `what` (the keys that its help names, else all), and files otherwise.
/// An option is a list where commas separate its values.
/// `offered`: of options ("--tasks"), values that are offered beside files.
Json command_table(const CLI::App& program, const std::vector<KeyOfConfig>& keys,
                   const std::map<std::string, std::vector<std::string>>& offered = {});

/// Where the build and an installation have the table of this program.
std::filesystem::path command_table_file();

} // namespace pentatron::cli
