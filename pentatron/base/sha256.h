/// SHA-256 (FIPS 180-4), to identify files.
#pragma once

#include <string>
#include <string_view>

namespace pentatron {

/// 64 hexadecimal digits in lower case.
std::string sha256(std::string_view text);

} // namespace pentatron
