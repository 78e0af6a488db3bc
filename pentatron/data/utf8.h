/// UTF-8 validation of a text that arrives in pieces.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "pentatron/base/utf8.h"

namespace pentatron::data {

/// The offset of the first byte that is not valid UTF-8 (overlong forms, surrogates and code points
/// above U+10FFFF are not), or npos. A sequence cut off by the end counts as invalid at its first
/// byte.
size_t find_invalid_utf8(std::string_view text);

/// How many bytes at the end of `text` are the beginning of a character that more bytes may
/// complete: 0 to 3. A reader of pieces holds them back and puts them before the next piece.
size_t incomplete_utf8_tail(std::string_view text);

} // namespace pentatron::data
