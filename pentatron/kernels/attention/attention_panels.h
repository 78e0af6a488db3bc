/// What attention in blocks shares with the products of every instruction set.
#pragma once

#include <algorithm>
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
/// Positions are counted from the first key of the pair.
struct Visibility {
  int64_t query = 0;
  int64_t window = 0;
  int count = kQueries;
  int64_t open = 0; ///< queries see keys in front of them too, up to this one
  uint32_t of(int64_t key) const {
    const int64_t from = key - query, first = key >= open  ? from
                                              : window > 0 ? from - window + 1
                                                           : 0;
    if (first >= kQueries) return 0;
    uint32_t mask = count == kQueries ? ~0U : (1U << count) - 1;
    if (first > 0) mask &= ~0U << first;
    if (window > 0 && from + window < kQueries)
      mask &= from + window <= 0 ? 0 : (1U << (from + window)) - 1;
    return mask;
  }
  /// Whether each of 32 queries sees each of `keys` keys from `key` on: the ends of what is visible
  /// do not go back from a query to the next.
  bool all(int64_t key, int64_t keys) const { return of(key) == ~0U && of(key + keys - 1) == ~0U; }
  /// The keys that any of the queries sees lie in [first_key(), end_key()).
  int64_t first_key() const { return window > 0 ? std::max<int64_t>(0, query - window + 1) : 0; }
  int64_t end_key(int64_t keys) const {
    const int64_t ahead = window > 0 ? std::min(open, query + count - 1 + window) : open;
    return std::clamp<int64_t>(std::max(query + count, ahead), 0, keys);
  }
};

} // namespace pentatron::kernels::attention_detail
