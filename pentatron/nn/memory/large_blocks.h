/// Memory of large tensors, kept between uses.
///
/// A step allocates and frees the same large blocks again and again. The C library returns them to
/// the system, which clears every page before it hands it out the next time. Here freed blocks
/// wait: a new block takes the start of the smallest that has room, and freed neighbours are
/// joined. The bytes of all blocks never exceed the most that were in use at one time: where a new
/// block would pass that, waiting memory is given back first, and all of it where a limit
/// (memory_room.h) would be passed. Blocks ask for huge pages.
#pragma once

#include <cstddef>

namespace pentatron::nn {

/// Allocations from here up come from large_block().
inline constexpr size_t kLargeBlock = size_t{1} << 20;

/// At least `bytes`, aligned to a page, of any content; nullptr if no memory is available, or under
/// a sanitizer. Safe to call from any thread.
void* large_block(size_t bytes);
/// `bytes` as they were asked for.
void free_large_block(void* data, size_t bytes);

struct LargeBlockUse {
  size_t used_bytes = 0;
  size_t waiting_bytes = 0;
  size_t most_used_bytes = 0;
};
LargeBlockUse large_block_use();

} // namespace pentatron::nn
