#include "tests/roofline/memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <map>
#include <mutex>

#include "pentatron/base/error.h"
#include "tests/roofline/caching.h"

namespace pentatron::roofline {

namespace {

constexpr size_t kArena = size_t{16} << 40, kAlignment = 512, kPage = 4096;

struct Arena {
  std::mutex mutex;
  uintptr_t begin = 0;
  size_t used = 0;
  std::map<uintptr_t, size_t> ranges; ///< bytes by first address
  int64_t alive = 0, peak = 0;
  CachingModel caching;

  Arena() {
    void* const p = ::mmap(nullptr, kArena, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) raise<Error>("this system does not reserve {} bytes of addresses", kArena);
    ::madvise(p, kArena, MADV_NOHUGEPAGE);
    begin = reinterpret_cast<uintptr_t>(p);
  }
};

Arena& arena() {
  static auto* const one = new Arena; // tensors outlive static objects
  return *one;
}

} // namespace

void* reserve(size_t bytes) {
  Arena& a = arena();
  const std::scoped_lock lock(a.mutex);
  const size_t room = (std::max<size_t>(bytes, 1) + kAlignment - 1) / kAlignment * kAlignment;
  // Ranges of a page and more own their pages.
  if (room >= kPage) a.used = (a.used + kPage - 1) / kPage * kPage;
  if (a.used + room > kArena) raise<Error>("the addresses of the device are used up");
  const uintptr_t p = a.begin + a.used;
  a.used += room >= kPage ? (room + kPage - 1) / kPage * kPage : room;
  a.ranges.emplace(p, bytes);
  a.alive += static_cast<int64_t>(bytes);
  a.peak = std::max(a.peak, a.alive);
  a.caching.allocate(p, bytes);
  return reinterpret_cast<void*>(p);
}

void give_back(void* p, size_t bytes) {
  Arena& a = arena();
  const std::scoped_lock lock(a.mutex);
  a.alive -= static_cast<int64_t>(bytes);
  a.caching.release(reinterpret_cast<uintptr_t>(p));
  if (bytes >= kPage) ::madvise(p, (bytes + kPage - 1) / kPage * kPage, MADV_DONTNEED);
}

namespace {
std::mutex g_access; // of what follows: the threads of backward and of loading copy, too
bool g_hidden = false;
int g_accesses = 0;

void protect(int rights) {
  if (::mprotect(reinterpret_cast<void*>(arena().begin), kArena, rights) != 0)
    raise<Error>("this system does not protect {} bytes of addresses", kArena);
}
} // namespace

void hide_device_memory() {
  const std::scoped_lock lock(g_access);
  g_hidden = true;
  protect(PROT_NONE);
}
DeviceAccess::DeviceAccess() {
  const std::scoped_lock lock(g_access);
  if (g_accesses++ == 0 && g_hidden) protect(PROT_READ | PROT_WRITE);
}
DeviceAccess::~DeviceAccess() {
  const std::scoped_lock lock(g_access);
  if (--g_accesses == 0 && g_hidden) protect(PROT_NONE);
}

bool in_device_memory(const void* p) {
  static const uintptr_t begin = arena().begin;
  return reinterpret_cast<uintptr_t>(p) - begin < kArena;
}

Range range_of(uintptr_t address) {
  Arena& a = arena();
  const std::scoped_lock lock(a.mutex);
  const auto next = a.ranges.upper_bound(address);
  PT_DCHECK(next != a.ranges.begin());
  const auto& [begin, bytes] = *std::prev(next);
  return {begin, bytes};
}

int64_t reserved_bytes() {
  const std::scoped_lock lock(arena().mutex);
  return arena().alive;
}
int64_t peak_bytes() {
  const std::scoped_lock lock(arena().mutex);
  return arena().peak;
}
int64_t segments() {
  const std::scoped_lock lock(arena().mutex);
  return arena().caching.segments();
}
void empty_cache() {
  const std::scoped_lock lock(arena().mutex);
  arena().caching.empty_cache();
}
void reset_peak() {
  const std::scoped_lock lock(arena().mutex);
  arena().peak = arena().alive;
}

} // namespace pentatron::roofline
