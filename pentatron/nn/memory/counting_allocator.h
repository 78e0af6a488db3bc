/// Counts the bytes of CPU tensors by rank and category: thread ranks share one process, whose
/// resident memory cannot be split between them.
///
/// An allocation belongs to the rank of the thread that makes it (comm::current_rank()) and to the
/// category of the innermost MemoryScope on that thread; whoever frees it, the owner is credited.
/// Bytes are those asked for: an allocation costs 64 bytes more, for the owner's name. Large
/// allocations come from large_blocks.h, the others from torch's allocator. A large one for which
/// the control groups leave no room (memory_room.h) fails.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace pentatron::nn {

enum class MemoryCategory : uint8_t {
  kParameters,
  kGradients,
  kOptimizer,
  kActivations,
  kWorkspace,
  kData,
  kOther ///< outside any scope
};
inline constexpr size_t kNumMemoryCategories = 7;

/// "parameters", "gradients", ...
std::string_view name(MemoryCategory category);

/// Puts the counting allocator before torch's own, for tensors allocated from now on. Idempotent;
/// call it at the start of the program, before threads allocate tensors.
void install_counting_allocator();

/// Allocations of this thread have the category while the object lives; the previous one returns
/// after it.
class MemoryScope {
 public:
  explicit MemoryScope(MemoryCategory category);
  ~MemoryScope();
  MemoryScope(const MemoryScope&) = delete;
  MemoryScope& operator=(const MemoryScope&) = delete;

 private:
  MemoryCategory previous_;
};

/// Of the innermost MemoryScope of this thread.
MemoryCategory memory_category();

struct MemoryUse {
  int64_t current_bytes = 0;
  int64_t peak_bytes = 0; ///< since the start or the last reset_memory_peak
};

struct MemorySnapshot {
  std::array<MemoryUse, kNumMemoryCategories> categories;
  MemoryUse total; ///< its peak is that of the sum, at most the sum of the peaks

  const MemoryUse& operator[](MemoryCategory category) const {
    return categories[static_cast<size_t>(category)];
  }
};

/// Ranks from kMaxCountedRanks - 1 up are counted together.
inline constexpr int kMaxCountedRanks = 256;

/// What the rank holds and held at most. Zeros if the allocator is not installed.
MemorySnapshot memory_snapshot(int rank);

/// Peaks of the rank become what it holds now.
void reset_memory_peak(int rank);

} // namespace pentatron::nn
