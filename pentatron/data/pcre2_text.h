/// What the users of PCRE2 have in common.
#pragma once

#include <cstddef>
#include <string>

namespace pentatron::data {

/// Longer patterns are refused.
inline constexpr size_t kMaxPatternBytes = 1 << 16;

/// The sentence of PCRE2 for one of its error codes.
std::string pcre2_sentence(int code);

} // namespace pentatron::data
