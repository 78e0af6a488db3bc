/// Tab completion for shells, made from the table of commands.
#pragma once

#include <string>

#include "pentatron/base/json.h"

namespace pentatron::cli {

/// A script for bash (4.3 or newer) or zsh that completes commands, options, values, configuration
/// keys, their values and files. It starts no program. `table` as command_table() makes it; throws
/// DataError if it is not such a table.
std::string bash_completion(const Json& table);
std::string zsh_completion(const Json& table);

} // namespace pentatron::cli
