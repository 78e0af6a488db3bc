// Allocations under the memory limit of a control group.
#include "pentatron/nn/memory/memory_room.h"

#include <chrono>
#include <cstdint>
#include <string>
#include <thread>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "pentatron/nn/memory/counting_allocator.h"
#include "pentatron/nn/memory/large_blocks.h"
#include "tests/support/memory_limit.h"

namespace pentatron::nn {
namespace {

constexpr int64_t kMega = int64_t{1} << 20;
constexpr int64_t kGiga = int64_t{1} << 30;

class MemoryRoom : public ::testing::Test {
 protected:
  MemoryRoom() { install_counting_allocator(); }

  const test::MemoryLimit group;
};

TEST_F(MemoryRoom, LetsATensorFailThatIsLarger) {
  group.set(4 * kGiga, 3 * kGiga);
  group.watch();
  const int64_t before = memory_snapshot(0).total.current_bytes;
  EXPECT_NO_THROW(at::empty({64 * kMega}, at::kByte));
  std::string message;
  try {
    at::empty({2 * kGiga}, at::kByte);
  } catch (const c10::Error& error) {
    message = error.what();
  }
  EXPECT_THAT(message, ::testing::HasSubstr("can't allocate memory: "));
  EXPECT_EQ(memory_snapshot(0).total.current_bytes, before);
}

TEST_F(MemoryRoom, LetsSmallTensorsThrough) {
  group.set(kGiga, kGiga);
  group.watch();
  EXPECT_NO_THROW(at::empty({1000}, at::kFloat));
}

TEST_F(MemoryRoom, DoesNotCountCachedFiles) {
  group.set(kGiga, kGiga);
  group.watch();
  EXPECT_FALSE(room_for(100 * kMega));
  group.set(kGiga, kGiga, 100 * kMega);
  EXPECT_TRUE(room_for(100 * kMega)); // exactly
  EXPECT_FALSE(room_for(101 * kMega));
}

/// The limit comes after the start, and nobody sees it: the files are not read.
TEST_F(MemoryRoom, WithoutALimitIsNotLookedFor) {
  group.watch();
  group.set(kGiga, kGiga);
  EXPECT_TRUE(room_for(100 * kMega));
  EXPECT_TRUE(room_for(kGiga * 100));
  group.watch();
  EXPECT_FALSE(room_for(100 * kMega));
}

TEST_F(MemoryRoom, IsReadAgainAfterSomeBytes) {
  group.set(4 * kGiga, 0);
  group.watch();
  EXPECT_TRUE(room_for(64 * kMega));
  group.set(4 * kGiga, 4 * kGiga);
  EXPECT_FALSE(room_for(kMega));
}

TEST_F(MemoryRoom, IsReadAgainAfterSomeTime) {
  group.set(4 * kGiga, 0);
  group.watch();
  EXPECT_TRUE(room_for(kMega));
  group.set(4 * kGiga, 4 * kGiga);
  std::this_thread::sleep_for(std::chrono::milliseconds(60));
  EXPECT_FALSE(room_for(kMega));
}

/// What is not touched may never be; what is touched is in the files.
TEST_F(MemoryRoom, IsNotTakenByWhatWasAllocatedAndNotTouched) {
  group.set(kGiga, kGiga - 50 * kMega);
  group.watch();
  EXPECT_TRUE(room_for(40 * kMega));
  EXPECT_TRUE(room_for(40 * kMega));
  group.set(kGiga, kGiga - 10 * kMega);
  EXPECT_FALSE(room_for(40 * kMega)); // more than what was left: looks again
  EXPECT_TRUE(room_for(10 * kMega));
}

TEST_F(MemoryRoom, IsNotNeededByBlocksThatAreUsedAgain) {
  constexpr size_t kBytes = 128 * kMega;
  void* const first = large_block(kBytes);
  if (first == nullptr) GTEST_SKIP() << "a sanitizer watches memory";
  free_large_block(first, kBytes);
  group.set(kGiga, kGiga);
  group.watch();
  void* const second = large_block(kBytes);
  ASSERT_NE(second, nullptr);
  free_large_block(second, kBytes);
  // A larger one gets none, and what waits is given back before.
  EXPECT_GT(large_block_use().waiting_bytes, 0U);
  EXPECT_EQ(large_block(4 * kGiga), nullptr);
  EXPECT_EQ(large_block_use().waiting_bytes, 0U);
}

} // namespace
} // namespace pentatron::nn
