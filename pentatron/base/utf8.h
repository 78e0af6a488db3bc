/// UTF-8, byte by byte.
#pragma once

#include <string>
#include <string_view>

namespace pentatron {

/// What some programs write in front of a text.
inline constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

/// Appends a code point below 0x110000.
void append_utf8(std::string& text, char32_t c);

} // namespace pentatron
