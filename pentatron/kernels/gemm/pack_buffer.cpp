#include "pentatron/kernels/gemm/pack_buffer.h"

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <vector>

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "pentatron/base/error.h"
#include "pentatron/kernels/gemm/gemm.h"

namespace pentatron::kernels {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;

struct Block {
  std::byte* data;
  size_t bytes;
};

struct Pool {
  std::mutex mutex;
  std::vector<Block> idle;
  int64_t held_bytes = 0;
};

Pool& pool() {
  static Pool* const instance = new Pool; // never destroyed: threads may still hold buffers at exit
  return *instance;
}

} // namespace

namespace gemm_detail {

PackBuffer::PackBuffer(size_t bytes) {
  Pool& p = pool();
  const size_t rounded = (bytes + kHugePage - 1) / kHugePage * kHugePage;
  std::lock_guard lock(p.mutex);
  // The smallest that fits; when none does, the largest makes place for a bigger one, so that their
  // number stays that of the threads.
  auto best = p.idle.end();
  for (auto it = p.idle.begin(); it != p.idle.end(); ++it) {
    if (it->bytes >= rounded && (best == p.idle.end() || it->bytes < best->bytes)) best = it;
  }
  if (best != p.idle.end()) {
    data_ = best->data;
    bytes_ = best->bytes;
    p.idle.erase(best);
    return;
  }
  const auto largest =
      std::max_element(p.idle.begin(), p.idle.end(),
                       [](const Block& x, const Block& y) { return x.bytes < y.bytes; });
  if (largest != p.idle.end()) {
    std::free(largest->data);
    p.held_bytes -= static_cast<int64_t>(largest->bytes);
    p.idle.erase(largest);
  }
  p.idle.reserve(p.idle.size() + 64);
  data_ = static_cast<std::byte*>(std::aligned_alloc(kHugePage, rounded));
  if (data_ == nullptr) raise<Error>("gemm: no memory for a buffer of {} bytes", rounded);
#if defined(__linux__)
  madvise(data_, rounded, MADV_HUGEPAGE); // a hint; failing costs only TLB misses
#endif
  bytes_ = rounded;
  p.held_bytes += static_cast<int64_t>(rounded);
}

PackBuffer::~PackBuffer() {
  if (data_ == nullptr) return;
  Pool& p = pool();
  std::lock_guard lock(p.mutex);
  p.idle.push_back({data_, bytes_});
}

} // namespace gemm_detail

int64_t gemm_buffer_bytes() {
  Pool& p = pool();
  std::lock_guard lock(p.mutex);
  return p.held_bytes;
}

void gemm_release_buffers() {
  Pool& p = pool();
  std::lock_guard lock(p.mutex);
  for (const Block& block : p.idle) {
    std::free(block.data);
    p.held_bytes -= static_cast<int64_t>(block.bytes);
  }
  p.idle.clear();
}

} // namespace pentatron::kernels
