/// What attention in blocks shares with the products of every instruction set.
#pragma once

#include <cstdint>

namespace pentatron::kernels::attention_detail {

constexpr int kQueries = 32;   ///< of a panel
constexpr int64_t kPanels = 4; ///< of queries that share a pass over the keys in the backward
constexpr int64_t kMaxHeadSize = 512;

constexpr int64_t ceil_div(int64_t x, int64_t y) {
  return (x + y - 1) / y;
}
constexpr int64_t round_up(int64_t x, int64_t y) {
  return ceil_div(x, y) * y;
}

/// Panels [first, last) of the `count` queries of a pass.
struct QueryRange {
  int64_t first = 0;
  int64_t last = 0;
  int64_t count = 0;
};

/// Which of 32 queries, the first at position `query` and `count` of them real, see a key.
struct Visibility {
  int64_t query = 0;
  int64_t window = 0;
  int count = kQueries;
  uint32_t of(int64_t key) const {
    const int64_t from = key - query;
    if (from >= kQueries) return 0;
    uint32_t mask = count == kQueries ? ~0U : (1U << count) - 1;
    if (from > 0) mask &= ~0U << from;
    if (window > 0 && from + window < kQueries)
      mask &= from + window <= 0 ? 0 : (1U << (from + window)) - 1;
    return mask;
  }
};

} // namespace pentatron::kernels::attention_detail
