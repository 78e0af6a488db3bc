/// A contiguous part of a model's list of segments; what one pipeline stage holds.
///
/// A model of L layers is the segments 0 (embedding), 1 to L (layers), L + 1 (head with the loss).
/// A segment has the same number in the ParamStore.
#pragma once

#include <cstdint>

namespace pentatron {

struct SegmentRange {
  int64_t begin = 0, end = 0; ///< segments [begin, end)
  bool operator==(const SegmentRange&) const = default;
};

} // namespace pentatron
