#include "pentatron/nn/memory/counting_allocator.h"

#include "tests/support/ranks.h"

#include <ATen/ATen.h>
#include <c10/core/CPUAllocator.h>
#include <gtest/gtest.h>

#include <thread>

namespace pentatron::nn {
namespace {

class CountingAllocator : public testing::Test {
 protected:
  CountingAllocator() { install_counting_allocator(); }

  static int64_t current(int rank, MemoryCategory category) {
    return memory_snapshot(rank)[category].current_bytes;
  }
};

TEST_F(CountingAllocator, CountsTheBytesOfATensorWhileItLives) {
  const int64_t before = current(0, MemoryCategory::kOther);
  const int64_t total = memory_snapshot(0).total.current_bytes;
  {
    const at::Tensor x = at::empty({1000, 3}, at::kFloat);
    EXPECT_EQ(current(0, MemoryCategory::kOther), before + 12000);
    EXPECT_EQ(memory_snapshot(0).total.current_bytes, total + 12000);
    const at::Tensor view = x.t();
    EXPECT_EQ(current(0, MemoryCategory::kOther), before + 12000);
  }
  EXPECT_EQ(current(0, MemoryCategory::kOther), before);
  EXPECT_EQ(memory_snapshot(0).total.current_bytes, total);
}

TEST_F(CountingAllocator, PutsBytesIntoTheInnermostScope) {
  const MemoryScope outer(MemoryCategory::kActivations);
  const MemorySnapshot before = memory_snapshot(0);
  at::Tensor inner_tensor;
  {
    const MemoryScope inner(MemoryCategory::kOptimizer);
    inner_tensor = at::empty({100}, at::kDouble);
  }
  const at::Tensor outer_tensor = at::empty({10}, at::kDouble);
  const MemorySnapshot now = memory_snapshot(0);
  EXPECT_EQ(now[MemoryCategory::kOptimizer].current_bytes -
                before[MemoryCategory::kOptimizer].current_bytes,
            800);
  EXPECT_EQ(now[MemoryCategory::kActivations].current_bytes -
                before[MemoryCategory::kActivations].current_bytes,
            80);
}

TEST_F(CountingAllocator, KeepsThePeakUntilReset) {
  const MemoryScope scope(MemoryCategory::kWorkspace);
  reset_memory_peak(0);
  const MemoryUse start = memory_snapshot(0)[MemoryCategory::kWorkspace];
  EXPECT_EQ(start.peak_bytes, start.current_bytes);
  { const at::Tensor large = at::empty({5000}, at::kByte); }
  { const at::Tensor small = at::empty({2000}, at::kByte); }
  EXPECT_EQ(memory_snapshot(0)[MemoryCategory::kWorkspace].peak_bytes, start.current_bytes + 5000);
  EXPECT_EQ(memory_snapshot(0)[MemoryCategory::kWorkspace].current_bytes, start.current_bytes);
  reset_memory_peak(0);
  EXPECT_EQ(memory_snapshot(0)[MemoryCategory::kWorkspace].peak_bytes, start.current_bytes);
}

TEST_F(CountingAllocator, ThePeakOfTheTotalIsThatOfTheSum) {
  reset_memory_peak(0);
  const int64_t start = memory_snapshot(0).total.current_bytes;
  for (const auto category : {MemoryCategory::kGradients, MemoryCategory::kData}) {
    const MemoryScope scope(category);
    const at::Tensor x = at::empty({3000}, at::kByte);
  }
  EXPECT_EQ(memory_snapshot(0).total.peak_bytes, start + 3000);
}

TEST_F(CountingAllocator, CreditsTheOwnerFromWhicheverThreadFrees) {
  at::Tensor x;
  const int64_t before = current(0, MemoryCategory::kData);
  {
    const MemoryScope scope(MemoryCategory::kData);
    x = at::empty({4000}, at::kByte);
  }
  std::thread([y = std::move(x)]() mutable {
    const MemoryScope scope(MemoryCategory::kParameters);
    y.reset();
  }).join();
  EXPECT_EQ(current(0, MemoryCategory::kData), before);
}

TEST_F(CountingAllocator, SeparatesThreadRanks) {
  std::vector<at::Tensor> kept(3);
  std::vector<int64_t> before(3);
  for (int rank = 0; rank < 3; ++rank) before[rank] = current(rank, MemoryCategory::kParameters);
  test::run_ranks(3, [&](const comm::Group& world) {
    const MemoryScope scope(MemoryCategory::kParameters);
    kept[world.rank()] = at::empty({1000 * (world.rank() + 1)}, at::kByte);
  });
  for (int rank = 0; rank < 3; ++rank)
    EXPECT_EQ(current(rank, MemoryCategory::kParameters) - before[rank], 1000 * (rank + 1));
  kept.clear();
  for (int rank = 0; rank < 3; ++rank)
    EXPECT_EQ(current(rank, MemoryCategory::kParameters), before[rank]);
}

TEST_F(CountingAllocator, BackwardCountsForTheRankThatCallsIt) {
  test::run_ranks(2, [&](const comm::Group& world) {
    const MemoryScope scope(MemoryCategory::kGradients);
    const int64_t start = current(world.rank(), MemoryCategory::kGradients);
    const at::Tensor x = at::ones({1000}, at::kFloat).requires_grad_();
    (x * x).sum().backward();
    EXPECT_GE(current(world.rank(), MemoryCategory::kGradients) - start,
              8000); // x and its gradient
  });
}

TEST_F(CountingAllocator, LosesNothingUnderManyThreads) {
  const MemorySnapshot before = memory_snapshot(0);
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t)
    threads.emplace_back([] {
      const MemoryScope scope(MemoryCategory::kWorkspace);
      for (int i = 0; i < 500; ++i) at::empty({i + 1}, at::kFloat);
    });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(memory_snapshot(0).total.current_bytes, before.total.current_bytes);
}

TEST_F(CountingAllocator, KeepsTheAlignmentAndTheRawInterface) {
  for (const int64_t bytes : {1, 63, 64, 65, 4097, 1 << 20}) {
    const at::Tensor x = at::empty({bytes}, at::kByte);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(x.data_ptr()) % 64, 0u);
  }
  const int64_t before = memory_snapshot(0).total.current_bytes;
  c10::Allocator* allocator = c10::GetCPUAllocator();
  void* raw = allocator->raw_allocate(100);
  EXPECT_EQ(memory_snapshot(0).total.current_bytes, before + 100);
  allocator->raw_deallocate(raw);
  EXPECT_EQ(memory_snapshot(0).total.current_bytes, before);
  const c10::DataPtr simple = allocator->allocate(10);
  EXPECT_TRUE(allocator->is_simple_data_ptr(simple));
  EXPECT_EQ(allocator->allocate(0).get(), nullptr);
}

TEST_F(CountingAllocator, FollowsAStorageThatGrows) {
  const int64_t before = memory_snapshot(0).total.current_bytes;
  at::Tensor x = at::arange(10, at::kLong);
  x.resize_({1000});
  EXPECT_EQ(memory_snapshot(0).total.current_bytes, before + 8000);
  EXPECT_EQ(x[9].item<int64_t>(), 9);
  x.reset();
  EXPECT_EQ(memory_snapshot(0).total.current_bytes, before);
}

TEST_F(CountingAllocator, RefusesASizeThatNoMachineHasAndCountsNothing) {
  const int64_t before = memory_snapshot(0).total.current_bytes;
  EXPECT_ANY_THROW(at::empty({int64_t{1} << 60}, at::kByte));
  EXPECT_ANY_THROW(c10::GetCPUAllocator()->allocate(~size_t{0}));
  EXPECT_EQ(memory_snapshot(0).total.current_bytes, before);
}

TEST_F(CountingAllocator, NamesItsCategories) {
  EXPECT_EQ(name(MemoryCategory::kParameters), "parameters");
  EXPECT_EQ(name(MemoryCategory::kOther), "other");
}

} // namespace
} // namespace pentatron::nn
