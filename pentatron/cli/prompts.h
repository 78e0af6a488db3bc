/// Prompts from files and from standard input.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace pentatron::cli {

struct FilePrompt {
  std::string text;
  std::optional<std::string> adapter; ///< of the member `adapter`; empty: null
};

/// One prompt per line, or of a JSON Lines file the string `prompt` of each line; empty lines are
/// skipped. A name with .jsonl or .ndjson makes the file JSON Lines, as does an object in the first
/// line that is not empty; so does one in a later line if the first begins with "{", which
/// is then the error. Throws DataError, with the line, for what is not one of them, and for a file
/// without a prompt.
std::vector<FilePrompt> read_prompt_file(const std::string& file);

/// Whether standard input is a pipe, a socket or a file: somebody may have written a prompt to it.
bool has_piped_input();
/// All of standard input without the end of its last line. Throws DataError if it is not UTF-8.
std::string read_piped_prompt();

} // namespace pentatron::cli
