// What pentatron's CUDA kernels read and write. The kernels are compiled for the CPU
// (tests/kernels/emulated) with the compiler's instrumentation for ThreadSanitizer, whose functions
// are those at the end of this file: they see every load and store. Of a launch of many blocks a
// sample runs, and stands for the rest.
#include <algorithm>
#include <array>
#include <bit>
#include <map>
#include <optional>
#include <random>
#include <unordered_map>

#include "tests/kernels/emulated/emulation.h"
#include "tests/roofline/accesses.h"
#include "tests/roofline/launches.h"
#include "tests/roofline/memory.h"

namespace pentatron::roofline {

namespace {

constexpr unsigned kAllBlocks = 64; // of launches up to here all blocks run
constexpr unsigned kSample = 16;    // of others
constexpr uintptr_t kSector = 32;   // bytes; the unit of the caches

/// Of an H100: what it keeps of blocks that run at once.
constexpr int64_t kMultiprocessors = 132, kThreads = 2048, kCacheBytes = int64_t{40} << 20;

/// Bytes of a sector, as bits.
using Mask = uint32_t;

/// An access of a block: to which sector, between which barriers, which bytes.
struct Access {
  uintptr_t sector;
  uint32_t phase;
  bool write;
  Mask mask;

  auto place() const { return std::tuple(sector, phase, write); }
};

/// What one block, or all blocks, did with a sector.
struct Touched {
  Mask read = 0, written = 0;
  int passes = 0;       ///< phases that read it
  int64_t in_parts = 0; ///< sums over blocks of the bytes
  int64_t written_in_parts = 0;
  bool read_first = false;
};

class Counter final : public emulation::Observer {
 public:
  std::vector<unsigned> launch(const char* kernel, uint64_t key, dim3 blocks,
                               dim3 threads) override {
    op_ = kernel;
    key_ = key;
    access_.emplace();
    blocks_ = int64_t{blocks.x} * blocks.y;
    threads_ = int64_t{threads.x} * threads.y * threads.z;
    sectors_.clear();
    most_ = 0;
    run_ = 0;
    if (!recording()) {
      if (blocks_ > kAllBlocks) return {};
    } else if (known_.contains(key)) {
      return {};
    }
    std::vector<unsigned> chosen;
    const int64_t count = blocks_ <= kAllBlocks ? blocks_ : kSample;
    std::mt19937_64 random(1);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t from = i * blocks_ / count, to = (i + 1) * blocks_ / count;
      chosen.push_back(static_cast<unsigned>(
          from + static_cast<int64_t>(random() % static_cast<uint64_t>(to - from))));
    }
    run_ = count;
    return chosen;
  }

  void block_begins() override {
    add_block();
    phase_ = 0;
    counting_ = recording();
  }
  void barrier() override { ++phase_; }

  void launch_ended() override {
    add_block();
    counting_ = false;
    access_.reset();
    if (!recording()) return;
    const auto [found, fresh] = known_.try_emplace(key_);
    if (fresh) found->second = sums();
    record({.kind = Kind::kOwn,
            .op = op_,
            .shapes = std::to_string(blocks_) + " blocks of " + std::to_string(threads_),
            .read = found->second.read,
            .written = found->second.written});
  }

  void memory_set(void*, size_t bytes) override {
    record({.kind = Kind::kOwn,
            .op = "zero",
            .shapes = std::to_string(bytes) + " bytes",
            .written = static_cast<double>(bytes)});
  }

  void access(uintptr_t p, size_t bytes, bool write) {
    if (!counting_ || !in_device_memory(reinterpret_cast<void*>(p))) return;
    while (bytes > 0) {
      const uintptr_t sector = p / kSector, first = p % kSector;
      const size_t part = std::min<size_t>(bytes, kSector - first);
      const auto bits = static_cast<Mask>(((uint64_t{1} << part) - 1) << first);
      uint32_t& last = last_[sector % last_.size()];
      if (last < accesses_.size() && accesses_[last].place() == std::tuple(sector, phase_, write)) {
        accesses_[last].mask |= bits;
      } else {
        last = static_cast<uint32_t>(accesses_.size());
        accesses_.push_back({sector, phase_, write, bits});
      }
      p += part;
      bytes -= part;
    }
  }

 private:
  struct Sums {
    double read = 0, written = 0;
  };

  /// Takes the accesses of the block that has run into sectors_.
  void add_block() {
    if (accesses_.empty()) return;
    std::ranges::sort(accesses_, {}, &Access::place);
    int64_t unique = 0;
    for (size_t i = 0; i < accesses_.size();) {
      const uintptr_t sector = accesses_[i].sector;
      Touched own;
      own.read_first = !accesses_[i].write;
      for (; i < accesses_.size() && accesses_[i].sector == sector; ++i) {
        const Access& a = accesses_[i];
        const bool new_phase = i == 0 || accesses_[i - 1].sector != sector ||
                               accesses_[i - 1].phase != a.phase || accesses_[i - 1].write;
        if (!a.write && new_phase) ++own.passes;
        (a.write ? own.written : own.read) |= a.mask;
      }
      unique += std::popcount(own.read | own.written);
      Touched& all = sectors_[sector];
      all.in_parts += std::popcount(own.read);
      all.written_in_parts += std::popcount(own.written);
      all.read |= own.read;
      all.written |= own.written;
      all.passes = std::max(all.passes, own.passes);
      all.read_first = all.read_first || own.read_first;
    }
    most_ = std::max(most_, unique);
    accesses_.clear();
  }

  /// Of the whole launch. What several blocks read comes from memory once; what a block reads again
  /// behind a barrier comes from memory again where the blocks that run at once have more than the
  /// cache.
  Sums sums() const {
    const double scale =
        static_cast<double>(blocks_) / static_cast<double>(std::max<int64_t>(1, run_));
    const int64_t at_once =
        std::min(blocks_, kMultiprocessors * std::max<int64_t>(1, kThreads / threads_));
    const bool again = at_once * most_ > kCacheBytes;
    std::map<uintptr_t, std::pair<Sums, Range>> by_range;
    Range range;
    for (const auto& [sector, t] : sectors_) {
      const uintptr_t address = sector * kSector;
      if (address - range.begin >= std::max<size_t>(range.bytes, 1))
        range = range_of(address + std::countr_zero(t.read | t.written));
      auto& [sum, of] = by_range[range.begin];
      of = range;
      const auto count = [&](Mask all, int64_t in_parts) {
        const int together = std::popcount(all);
        return together == in_parts ? scale * together : static_cast<double>(together);
      };
      const bool from_memory = t.read_first || again;
      if (from_memory) sum.read += count(t.read, t.in_parts) * (again ? std::max(1, t.passes) : 1);
      sum.written += count(t.written, t.written_in_parts);
    }
    Sums all;
    for (const auto& [begin, one] : by_range) {
      const auto& [sum, of] = one;
      const auto most = static_cast<double>(of.bytes);
      all.read += again ? sum.read : std::min(sum.read, most);
      all.written += std::min(sum.written, most);
    }
    return all;
  }

  std::string op_;
  std::optional<DeviceAccess> access_; ///< during a launch
  uint64_t key_ = 0;
  int64_t blocks_ = 0, threads_ = 0, run_ = 0, most_ = 0;
  uint32_t phase_ = 0;
  bool counting_ = false;
  std::vector<Access> accesses_;
  std::array<uint32_t, 8192> last_{}; ///< places in accesses_, by sector
  std::unordered_map<uintptr_t, Touched> sectors_;
  std::map<uint64_t, Sums> known_; ///< of launches that differ in addresses alone
};

Counter g_counter;

} // namespace

void watch_kernels() {
  emulation::observer = &g_counter;
}

void seen(void* p, size_t bytes, bool write) {
  g_counter.access(reinterpret_cast<uintptr_t>(p), bytes, write);
}

} // namespace pentatron::roofline

// Called by instrumented code.
extern "C" {
#define PENTATRON_ACCESS(size)                                                                     \
  void __tsan_read##size(void* p) {                                                                \
    pentatron::roofline::seen(p, size, false);                                                     \
  }                                                                                                \
  void __tsan_write##size(void* p) {                                                               \
    pentatron::roofline::seen(p, size, true);                                                      \
  }                                                                                                \
  void __tsan_unaligned_read##size(void* p) {                                                      \
    pentatron::roofline::seen(p, size, false);                                                     \
  }                                                                                                \
  void __tsan_unaligned_write##size(void* p) {                                                     \
    pentatron::roofline::seen(p, size, true);                                                      \
  }
PENTATRON_ACCESS(1)
PENTATRON_ACCESS(2)
PENTATRON_ACCESS(4)
PENTATRON_ACCESS(8)
PENTATRON_ACCESS(16)
void __tsan_read_range(void* p, unsigned long bytes) {
  pentatron::roofline::seen(p, bytes, false);
}
void __tsan_write_range(void* p, unsigned long bytes) {
  pentatron::roofline::seen(p, bytes, true);
}
char __tsan_atomic8_load(const volatile char* p, int) {
  return __atomic_load_n(p, __ATOMIC_SEQ_CST);
}
void __tsan_atomic8_store(volatile char* p, char value, int) {
  __atomic_store_n(p, value, __ATOMIC_SEQ_CST);
}
long __tsan_atomic64_load(const volatile long* p, int) {
  return __atomic_load_n(p, __ATOMIC_SEQ_CST);
}
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit(void*) {}
void __tsan_vptr_update(void*, void*) {}
void __tsan_vptr_read(void*) {}
}
