/// Documents of text files, for commands that score them.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "pentatron/data/input_report.h"

namespace pentatron::cli {

/// Of a document: its text, and what hears which share of it was used.
using UseDocument = std::function<void(std::string_view text, const std::function<void(double)>&)>;

/// Calls `use` with each document of the files and folders, in order, and shows the progress. A
/// text file is one document, each line of a JSON Lines file is one. Throws DataError for missing
/// and invalid input; its message names the paths as `option` ("--file"), and the key as
/// --text-key, which the command has.
void for_each_document(const std::vector<std::string>& paths, std::string_view option,
                       const std::string& text_key, const UseDocument& use);

/// What to try for bad input, in options of such a command; `others`: behind documents that were
/// good.
std::string remedy_in_documents(const data::SkippedInput& input, bool others);

} // namespace pentatron::cli
