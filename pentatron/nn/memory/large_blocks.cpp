#include "pentatron/nn/memory/large_blocks.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <utility>

#include "pentatron/nn/memory/memory_room.h"

namespace pentatron::nn {

namespace {

constexpr size_t kPage = 4096;
constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kAtEnd = size_t{64} << 20;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kWatched = true;
#else
constexpr bool kWatched = false;
#endif

size_t rounded(size_t bytes) {
  return (bytes + kPage - 1) / kPage * kPage;
}

/// Maps a few pages more than needed and gives back what lies outside of the aligned part.
std::byte* map(size_t bytes) {
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
    std::byte* data = waiting(bytes);
    if (data == nullptr) {
      const size_t limit = std::max(use_.most_used_bytes, use_.used_bytes + bytes);
      while (use_.used_bytes + use_.waiting_bytes + bytes > limit)
        give_back(use_.used_bytes + use_.waiting_bytes + bytes - limit);
      if (!room_for(bytes)) {
        while (!by_size_.empty()) give_back(use_.waiting_bytes);
        if (!room_for(bytes)) return nullptr;
      }
      data = map(bytes);
      if (data == nullptr) return nullptr;
    }
    use_.used_bytes += bytes;
    use_.most_used_bytes = std::max(use_.most_used_bytes, use_.used_bytes);
    return data;
  }

  void free(std::byte* data, size_t bytes) {
    const std::lock_guard lock(mutex_);
    use_.used_bytes -= bytes;
    use_.waiting_bytes += bytes;
    const auto after = by_place_.lower_bound(data);
    if (after != by_place_.end() && data + bytes == after->first) {
      bytes += after->second;
      remove(after);
    }
    const auto next = by_place_.lower_bound(data);
    if (next != by_place_.begin()) {
      const auto before = std::prev(next);
      if (before->first + before->second == data) {
        data = before->first;
        bytes += before->second;
        remove(before);
      }
    }
    add(data, bytes);
  }

  LargeBlockUse use() {
    const std::lock_guard lock(mutex_);
    return use_;
  }

 private:
  using Ranges = std::map<std::byte*, size_t>;

  void add(std::byte* data, size_t bytes) {
    by_place_.emplace(data, bytes);
    by_size_.emplace(bytes, data);
  }
  void remove(Ranges::iterator range) {
    by_size_.erase({range->second, range->first});
    by_place_.erase(range);
  }

  /// From the smallest range that has room: the largest blocks, which come and go together, from
  /// its end.
  std::byte* waiting(size_t bytes) {
    const auto found = by_size_.lower_bound({bytes, nullptr});
    if (found == by_size_.end()) return nullptr;
    const auto [size, data] = *found;
    remove(by_place_.find(data));
    use_.waiting_bytes -= bytes;
    if (size == bytes) return data;
    const bool at_end = bytes >= kAtEnd;
    add(at_end ? data : data + bytes, size - bytes);
    return at_end ? data + (size - bytes) : data;
  }

  /// The end of the largest range, at most `bytes` and what would be left of a huge page.
  void give_back(size_t bytes) {
    const auto [size, data] = *by_size_.rbegin();
    remove(by_place_.find(data));
    const auto end = reinterpret_cast<uintptr_t>(data + size);
    size_t given = size;
    if (size > bytes) given = std::min(size, end - (end - bytes) / kHugePage * kHugePage);
    if (given < size) add(data, size - given);
    ::munmap(data + (size - given), given);
    use_.waiting_bytes -= given;
  }

  std::mutex mutex_;
  Ranges by_place_;                                 // what waits; neighbours are joined
  std::set<std::pair<size_t, std::byte*>> by_size_; // the same
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
  blocks().free(static_cast<std::byte*>(data), rounded(bytes));
}

LargeBlockUse large_block_use() {
  return blocks().use();
}

} // namespace pentatron::nn
