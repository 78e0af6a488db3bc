/// White space as Python's str.strip(), str.split() and str.isspace() see it: Unicode's, with the
/// separators U+001C to U+001F.
#pragma once

#include <cstdint>
#include <string_view>

namespace pentatron {

bool is_white_space(char32_t c);

/// The UTF-8 text without the white space at its start or end.
std::string_view without_leading_space(std::string_view text);
std::string_view without_trailing_space(std::string_view text);
std::string_view stripped(std::string_view text);

/// Start and length in bytes of the first run of white space; the text's size and 0 without any.
struct SpaceRun {
  size_t begin = 0, size = 0;
};
SpaceRun find_space(std::string_view text);

/// Runs of white space in a text.
int64_t count_spaces(std::string_view text);

} // namespace pentatron
