/// A part of a text.
#pragma once

#include <cstddef>

namespace pentatron::data {

/// Bytes [begin, end) of a text.
struct TextSpan {
  size_t begin = 0, end = 0;
  bool operator==(const TextSpan&) const = default;
};

} // namespace pentatron::data
