#include "pentatron/nn/memory/large_blocks.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <mutex>

namespace pentatron::nn {

namespace {

constexpr size_t kPage = 4096;
constexpr size_t kHugePage = size_t{2} << 20;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kWatched = true;
#else
constexpr bool kWatched = false;
#endif

size_t rounded(size_t bytes) {
  return (bytes + kPage - 1) / kPage * kPage;
}

/// Maps a few pages more than needed and gives back what lies outside of the aligned part.
void* map(size_t bytes) {
  void* const all = ::mmap(nullptr, bytes + kHugePage, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (all == MAP_FAILED) return nullptr;
  auto* const begin = static_cast<std::byte*>(all);
  const size_t before = (kHugePage - reinterpret_cast<uintptr_t>(begin) % kHugePage) % kHugePage;
  if (before > 0) ::munmap(begin, before);
  ::munmap(begin + before + bytes, kHugePage - before);
#if defined(MADV_HUGEPAGE)
  ::madvise(begin + before, bytes, MADV_HUGEPAGE); // a hint
#endif
  return begin + before;
}

class Blocks {
 public:
  void* take(size_t bytes) {
    const std::lock_guard lock(mutex_);
    void* data = waiting(bytes);
    if (data == nullptr) {
      const size_t limit = std::max(use_.most_used_bytes, use_.used_bytes + bytes);
      while (use_.used_bytes + use_.waiting_bytes + bytes > limit) give_back_largest();
      data = map(bytes);
      if (data == nullptr) return nullptr;
    }
    use_.used_bytes += bytes;
    use_.most_used_bytes = std::max(use_.most_used_bytes, use_.used_bytes);
    return data;
  }

  void free(void* data, size_t bytes) {
    const std::lock_guard lock(mutex_);
    use_.used_bytes -= bytes;
    use_.waiting_bytes += bytes;
    waiting_.emplace(bytes, data);
  }

  LargeBlockUse use() {
    const std::lock_guard lock(mutex_);
    return use_;
  }

 private:
  void* waiting(size_t bytes) {
    const auto found = waiting_.find(bytes);
    if (found == waiting_.end()) return nullptr;
    void* const data = found->second;
    waiting_.erase(found);
    use_.waiting_bytes -= bytes;
    return data;
  }

  void give_back_largest() {
    const auto largest = std::prev(waiting_.end());
    ::munmap(largest->second, largest->first);
    use_.waiting_bytes -= largest->first;
    waiting_.erase(largest);
  }

  std::mutex mutex_;
  std::multimap<size_t, void*> waiting_; // by size
  LargeBlockUse use_;
};

Blocks& blocks() {
  static auto* const instance = new Blocks; // tensors may outlive every static object
  return *instance;
}

} // namespace

void* large_block(size_t bytes) {
  return kWatched ? nullptr : blocks().take(rounded(bytes));
}

void free_large_block(void* data, size_t bytes) {
  blocks().free(data, rounded(bytes));
}

LargeBlockUse large_block_use() {
  return blocks().use();
}

} // namespace pentatron::nn
