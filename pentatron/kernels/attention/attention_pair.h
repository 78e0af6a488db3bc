/// Which queries attend to which keys: ranges of both, and the mask between them.
#pragma once

#include <cstdint>

namespace pentatron::kernels {

/// The keys of its pair that a query sees, by position. With a window, only those at a distance
/// below the window, in both directions.
enum class AttentionMask : uint8_t {
  kCausal, ///< at the query's position or before
  kFull,   ///< all
  kPrefix, ///< those of kCausal, and the pair's first `prefix` keys
};

/// Queries [query_begin, query_begin + query_size) attend to keys [key_begin, key_begin +
/// key_size). The first query has position 0, the first key position `offset`. The pairs of a call
/// have disjoint queries and disjoint keys.
struct AttentionPair {
  int64_t query_begin = 0, query_size = 0;
  int64_t key_begin = 0, key_size = 0;
  int64_t offset = 0;
  int64_t prefix = 0;       ///< of kPrefix
  int64_t key_position = 0; ///< of the first key in its sample: the address of dropout
};

} // namespace pentatron::kernels
