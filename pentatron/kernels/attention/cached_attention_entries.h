/// The implementations behind cached_attention.h.
#pragma once

#include "pentatron/kernels/attention/cached_attention.h"

namespace pentatron::kernels {

/// A token of q and a key-value head.
struct CachedItem {
  const CachedSequence* sequence = nullptr;
  int64_t token = 0;           ///< of q
  int64_t head = 0;            ///< of k and v
  int64_t first = 0, last = 0; ///< visible keys, `last` excluded
  int64_t position = 0;        ///< of the token
};

/// Item i of `count_items(a)`.
int64_t count_items(const CachedAttention& a);
CachedItem item_at(const CachedAttention& a, int64_t i);

namespace cached_attention_reference {
void forward(const CachedAttention& a, const Context& context);
}
namespace cached_attention_avx2 {
void forward(const CachedAttention& a, const Context& context);
}
namespace cached_attention_avx512 {
void forward(const CachedAttention& a, const Context& context);
}

} // namespace pentatron::kernels
