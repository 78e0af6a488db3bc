#include "pentatron/base/error.h"
#include "pentatron/kernels/attention/cached_attention_entries.h"

#include <algorithm>
#include <limits>

#include "pentatron/kernels/common/parallel.h"

namespace pentatron::kernels {

namespace {

constexpr int64_t kCachedKeys = 64; ///< of a block
constexpr float kInfinity = std::numeric_limits<float>::infinity();
/// Elements that are worth another thread.
constexpr int64_t kWorkOfAThread = 1 << 14;

/// How many keys from `begin` on are worked on together: they are of one page.
int64_t block_keys(const CachedAttention& a, int64_t begin, int64_t last) {
  return std::min({kCachedKeys, last - begin, a.page - begin % a.page});
}

/// Scratch floats of one thread.
int64_t scratch_floats(const CachedAttention& a) {
  const int64_t group = a.heads / a.kv_heads;
  return group * (2 * (a.head_size + 1) + kCachedKeys) + 16;
}

int64_t thread_count(const CachedAttention& a) {
  int64_t work = 0;
  for (const CachedSequence& s : a.sequences) work += s.count * s.length;
  work *= a.heads * a.head_size;
  return std::clamp<int64_t>(std::min(count_items(a), work / kWorkOfAThread), 1, num_threads());
}

} // namespace

size_t workspace_bytes(const CachedAttention& args) {
  return static_cast<size_t>(thread_count(args) * scratch_floats(args)) * sizeof(float);
}

} // namespace pentatron::kernels

#if defined(__x86_64__)

#define PT_SIMD_BODY "pentatron/kernels/attention/cached_attention_simd_body.h"
#include "pentatron/kernels/common/foreach_isa.h"

namespace pentatron::kernels {

namespace {

/// Calls attend(item, scratch) for every item, on threads with a part of the workspace each.
template <class Scratch, class F>
void for_items(const CachedAttention& a, const Context& context, F&& attend) {
  PT_DCHECK(context.workspace.size() >= workspace_bytes(a));
  const int64_t items = count_items(a), threads = thread_count(a);
  const int64_t group = a.heads / a.kv_heads, part = group * (a.head_size + 1);
  parallel_blocks(items, (items + threads - 1) / threads,
                  [&](int64_t begin, int64_t end, int64_t block) {
                    float* const q = reinterpret_cast<float*>(context.workspace.data()) +
                                     block * scratch_floats(a);
                    const Scratch scratch{q, q + part, q + 2 * part};
                    for (int64_t i = begin; i < end; ++i) attend(item_at(a, i), scratch);
                  });
}

} // namespace

void cached_attention_avx2::forward(const CachedAttention& a, const Context& context) {
  for_items<avx2::Scratch>(a, context, [&](const CachedItem& item, const avx2::Scratch& scratch) {
    avx2::attend(a, item, scratch);
  });
}

void cached_attention_avx512::forward(const CachedAttention& a, const Context& context) {
  for_items<avx512::Scratch>(a, context,
                             [&](const CachedItem& item, const avx512::Scratch& scratch) {
                               avx512::attend(a, item, scratch);
                             });
}

} // namespace pentatron::kernels

#endif
