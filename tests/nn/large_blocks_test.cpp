#include "pentatron/nn/memory/large_blocks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

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
  EXPECT_EQ(reinterpret_cast<uintptr_t>(first) % 4096, 0U);
  std::memset(first, 7, 9 * kMiB);
  free_large_block(first, 9 * kMiB);
  void* const second = large_block(9 * kMiB);
  EXPECT_EQ(second, first);
  void* const other = large_block(9 * kMiB);
  EXPECT_NE(other, first);
  free_large_block(second, 9 * kMiB);
  free_large_block(other, 9 * kMiB);
}

TEST_F(LargeBlocks, AreCutAndJoined) {
  const size_t used = large_block_use().used_bytes;
  free_large_block(large_block(900 * kMiB), 900 * kMiB); // more than what waits
  const size_t waiting = large_block_use().waiting_bytes;
  constexpr size_t kParts[] = {300 * kMiB, 200 * kMiB, 400 * kMiB};
  std::vector<std::byte*> parts;
  for (const size_t bytes : kParts) parts.push_back(static_cast<std::byte*>(large_block(bytes)));
  EXPECT_EQ(parts[0], parts[1] + kParts[1]); // the largest from the end
  EXPECT_EQ(parts[1], parts[2] + kParts[2]);
  EXPECT_EQ(large_block_use().used_bytes, used + 900 * kMiB);
  EXPECT_EQ(large_block_use().waiting_bytes, waiting - 900 * kMiB);
  for (const size_t i : {0U, 2U, 1U}) free_large_block(parts[i], kParts[i]); // 1 has two neighbours
  EXPECT_EQ(large_block(900 * kMiB), parts[2]);
  EXPECT_EQ(large_block_use().waiting_bytes, waiting - 900 * kMiB);
  free_large_block(parts[2], 900 * kMiB);
}

TEST_F(LargeBlocks, KeepTheirContentAmongOthers) {
  // Blocks of many sizes, freed in another order; each is full of its own number.
  std::mt19937 random(7);
  struct Block {
    unsigned char* data;
    size_t bytes;
    int value;
  };
  std::vector<Block> blocks;
  for (int i = 0; i < 400; ++i) {
    if (blocks.size() < 12 && random() % 5 < 3) {
      const size_t bytes = kLargeBlock + random() % (8 * kMiB);
      auto* const data = static_cast<unsigned char*>(large_block(bytes));
      std::memset(data, i % 251, bytes);
      blocks.push_back({data, bytes, i % 251});
    } else if (!blocks.empty()) {
      std::swap(blocks[random() % blocks.size()], blocks.back());
      const Block& last = blocks.back();
      ASSERT_EQ(std::count(last.data, last.data + last.bytes, last.value),
                static_cast<std::ptrdiff_t>(last.bytes));
      free_large_block(last.data, last.bytes);
      blocks.pop_back();
    }
    const LargeBlockUse use = large_block_use();
    ASSERT_LE(use.used_bytes + use.waiting_bytes, use.most_used_bytes);
  }
  for (const Block& block : blocks) free_large_block(block.data, block.bytes);
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
