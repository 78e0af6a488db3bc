#include "pentatron/nn/memory/counting_allocator.h"

#include "pentatron/comm/rank_threads.h"
#include "pentatron/nn/memory/large_blocks.h"
#include "pentatron/nn/memory/memory_room.h"

#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <atomic>
#include <limits>
#include <mutex>
#include <new>

namespace pentatron::nn {

namespace {

thread_local MemoryCategory t_category = MemoryCategory::kOther;

class Counter {
 public:
  void add(int64_t bytes) {
    const int64_t now = current_.fetch_add(bytes, std::memory_order_relaxed) + bytes;
    int64_t peak = peak_.load(std::memory_order_relaxed);
    while (now > peak && !peak_.compare_exchange_weak(peak, now, std::memory_order_relaxed)) {
    }
  }
  void subtract(int64_t bytes) { current_.fetch_sub(bytes, std::memory_order_relaxed); }
  void reset_peak() {
    peak_.store(current_.load(std::memory_order_relaxed), std::memory_order_relaxed);
  }
  MemoryUse use() const {
    return {current_.load(std::memory_order_relaxed), peak_.load(std::memory_order_relaxed)};
  }

 private:
  std::atomic<int64_t> current_{0};
  std::atomic<int64_t> peak_{0};
};

struct alignas(64) RankCounters {
  std::array<Counter, kNumMemoryCategories> categories;
  Counter total;
};

std::array<RankCounters, kMaxCountedRanks> counters;

RankCounters& of_rank(int rank) {
  return counters[std::clamp(rank, 0, kMaxCountedRanks - 1)];
}

/// Lies before the bytes handed out and keeps torch's alignment.
struct alignas(64) Header {
  int64_t bytes;
  int32_t rank;
  MemoryCategory category;
  bool large; ///< from large_block()
};
static_assert(sizeof(Header) == 64 && c10::gAlignment <= 64);

class CountingAllocator final : public c10::Allocator {
 public:
  explicit CountingAllocator(c10::Allocator* inner) : inner_(inner) {}

  c10::DataPtr allocate(size_t bytes) override {
    if (bytes == 0) return {nullptr, nullptr, &release, c10::Device(c10::kCPU)};
    // A size near the limit stays there, so that torch's own allocator refuses it in its own words.
    constexpr size_t kMax = std::numeric_limits<size_t>::max() - sizeof(Header);
    const size_t whole = std::min(bytes, kMax) + sizeof(Header);
    // Sizes without sense are not even tried here.
    const bool try_large = whole >= kLargeBlock && whole < size_t{1} << 46;
    void* base = try_large ? large_block(whole) : nullptr;
    const bool large = base != nullptr;
    if (!large) {
      if (try_large) require_room(whole);
      base = inner_->raw_allocate(whole);
    }
    auto* header =
        new (base) Header{static_cast<int64_t>(bytes), comm::current_rank(), t_category, large};
    RankCounters& owner = of_rank(header->rank);
    owner.categories[static_cast<size_t>(header->category)].add(header->bytes);
    owner.total.add(header->bytes);
    void* data = header + 1;
    return {data, data, &release, c10::Device(c10::kCPU)};
  }

  c10::DeleterFnPtr raw_deleter() const override { return &release; }

  void copy_data(void* dest, const void* src, std::size_t count) const override {
    default_copy_data(dest, src, count);
  }

  static CountingAllocator*& instance() {
    static CountingAllocator* allocator = nullptr;
    return allocator;
  }

 private:
  static void release(void* data) {
    if (!data) return;
    Header* header = static_cast<Header*>(data) - 1;
    RankCounters& owner = of_rank(header->rank);
    owner.categories[static_cast<size_t>(header->category)].subtract(header->bytes);
    owner.total.subtract(header->bytes);
    if (header->large) {
      free_large_block(header, static_cast<size_t>(header->bytes) + sizeof(Header));
    } else {
      instance()->inner_->raw_deallocate(header);
    }
  }

  c10::Allocator* inner_;
};

} // namespace

std::string_view name(MemoryCategory category) {
  constexpr std::array<std::string_view, kNumMemoryCategories> kNames = {
      "parameters", "gradients", "optimizer", "activations", "workspace", "data", "other"};
  return kNames[static_cast<size_t>(category)];
}

void install_counting_allocator() {
  static std::once_flag once;
  std::call_once(once, [] {
    watch_memory_room();
    c10::Allocator* inner = c10::GetCPUAllocator();
    // The inner one must free what it is given by address alone; torch's default does.
    if (!inner->raw_deleter()) inner = c10::GetDefaultCPUAllocator();
    CountingAllocator::instance() =
        new CountingAllocator(inner); // tensors may outlive every static object
    c10::SetCPUAllocator(CountingAllocator::instance(), /*priority=*/1);
  });
}

MemoryScope::MemoryScope(MemoryCategory category) : previous_(t_category) {
  t_category = category;
}

MemoryScope::~MemoryScope() {
  t_category = previous_;
}

MemoryCategory memory_category() {
  return t_category;
}

MemorySnapshot memory_snapshot(int rank) {
  const RankCounters& of = of_rank(rank);
  MemorySnapshot snapshot;
  for (size_t i = 0; i < kNumMemoryCategories; ++i) snapshot.categories[i] = of.categories[i].use();
  snapshot.total = of.total.use();
  return snapshot;
}

void reset_memory_peak(int rank) {
  RankCounters& of = of_rank(rank);
  for (Counter& counter : of.categories) counter.reset_peak();
  of.total.reset_peak();
}

} // namespace pentatron::nn
