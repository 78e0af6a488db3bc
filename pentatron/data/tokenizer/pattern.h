/// From the regular expressions of tokenizers to those of PCRE2.
#pragma once

#include <string>
#include <string_view>

#include "pentatron/data/tokenizer/splitter.h"

namespace pentatron::data::tokenizer {

/// `pattern` in PCRE2's language: \s, \S, \w and \W with the Unicode meaning of the other engines,
/// classes inside classes and their intersections (&&), \u escapes. Throws DataError for what has
/// another meaning there and no translation.
std::string translate_pattern(std::string_view pattern, PatternFlavor flavor);

} // namespace pentatron::data::tokenizer
