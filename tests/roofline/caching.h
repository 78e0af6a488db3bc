/// Which allocations on the device LibTorch's caching allocator would take from the driver
/// (cudaMalloc, which waits for the GPU), and which it has at hand.
///
/// Its rules, without streams: sizes are rounded up to 512 bytes. Up to 1 MiB come from segments of
/// 2 MiB, up to 10 MiB from segments of 20 MiB, larger ones from a segment of their own size,
/// rounded up to 2 MiB. The smallest free block that is large enough is taken, and split unless
/// what remains is at most 1 MiB (small ones: nothing). Neighbours that are free become one.
/// Source: PyTorch's notes on CUDA semantics, "Memory management"; CUDACachingAllocator of 2.11.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <utility>

namespace pentatron::roofline {

class CachingModel {
 public:
  /// `id` names the allocation until release().
  void allocate(uintptr_t id, size_t bytes);
  void release(uintptr_t id);
  /// Gives back the segments in which nothing is alive.
  void empty_cache();

  int64_t segments() const { return taken_; } ///< taken from the driver so far

 private:
  struct Block {
    size_t bytes;
    size_t segment;   ///< its size
    bool first, last; ///< of its segment
  };
  using Place = uint64_t;
  /// Of one pool, by size.
  using Free = std::set<std::pair<size_t, Place>>;

  Place new_segment(size_t bytes);
  static bool is_small(size_t segment);
  Free& free_of(const Block& block) { return free_[is_small(block.segment) ? 0 : 1]; }

  std::map<Place, Block> blocks_; ///< all
  Free free_[2];                  ///< small and large ones
  std::map<uintptr_t, Place> alive_;
  Place next_ = 0;
  int64_t taken_ = 0;
};

} // namespace pentatron::roofline
