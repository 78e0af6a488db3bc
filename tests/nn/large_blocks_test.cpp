#include "pentatron/nn/memory/large_blocks.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>

#include <ATen/ATen.h>

#include "pentatron/nn/memory/counting_allocator.h"

namespace pentatron::nn {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

class LargeBlocks : public ::testing::Test {
 protected:
  void SetUp() override {
    void* const block = large_block(kLargeBlock);
    if (block == nullptr) GTEST_SKIP() << "a sanitizer watches memory";
    free_large_block(block, kLargeBlock);
  }
};

TEST_F(LargeBlocks, OfOneSizeAreUsedAgain) {
  void* const first = large_block(9 * kMiB);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(first) % (2 * kMiB), 0U);
  std::memset(first, 7, 9 * kMiB);
  free_large_block(first, 9 * kMiB);
  void* const second = large_block(9 * kMiB);
  EXPECT_EQ(second, first);
  void* const other = large_block(9 * kMiB);
  EXPECT_NE(other, first);
  free_large_block(second, 9 * kMiB);
  free_large_block(other, 9 * kMiB);
}

TEST_F(LargeBlocks, NeverHoldMoreThanWasInUseAtOnce) {
  const size_t used = large_block_use().used_bytes;
  for (const size_t megabytes : {40U, 30U, 20U, 45U, 10U, 33U, 50U, 7U}) {
    void* const block = large_block(megabytes * kMiB);
    const LargeBlockUse use = large_block_use();
    EXPECT_LE(use.used_bytes + use.waiting_bytes, use.most_used_bytes);
    free_large_block(block, megabytes * kMiB);
  }
  const LargeBlockUse use = large_block_use();
  EXPECT_EQ(use.used_bytes, used);
  EXPECT_LE(use.waiting_bytes + use.used_bytes, use.most_used_bytes);
}

TEST_F(LargeBlocks, HoldLargeTensorsOnly) {
  install_counting_allocator();
  const size_t used = large_block_use().used_bytes;
  const at::Tensor small = at::ones({1000});
  EXPECT_EQ(large_block_use().used_bytes, used);
  {
    const at::Tensor large = at::ones({3 << 20});
    EXPECT_GE(large_block_use().used_bytes, used + 12 * kMiB);
    EXPECT_EQ(large.sum().item<double>(), 3 << 20);
  }
  EXPECT_EQ(large_block_use().used_bytes, used);
}

TEST_F(LargeBlocks, LeaveImpossibleSizesToTorch) {
  install_counting_allocator();
  EXPECT_THROW(at::empty({int64_t{1} << 45}), c10::Error);
}

} // namespace
} // namespace pentatron::nn
