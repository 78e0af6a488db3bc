// The peak of a device is what its own allocator says.
#include "pentatron/nn/memory/device_memory.h"

#include "pentatron/nn/memory/counting_allocator.h"

#include <ATen/ATen.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <gtest/gtest.h>

namespace pentatron::nn {
namespace {

/// An allocator of a device type that nothing here uses.
class Allocator final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(size_t) override { return {}; }
  void copy_data(void*, const void*, std::size_t) const override {}
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override {}
  void recordStream(const c10::DataPtr&, c10::Stream) override {}
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    c10::CachingDeviceAllocator::DeviceStats stats;
    stats.allocated_bytes[0].increase(1000 + device);
    stats.allocated_bytes[0].decrease(900);
    stats.reserved_bytes[0].increase(5000);
    return stats;
  }
  void resetAccumulatedStats(c10::DeviceIndex) override {}
  void resetPeakStats(c10::DeviceIndex) override {}
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override {
    return {7000 + static_cast<size_t>(device), 9000};
  }
};

TEST(DeviceMemory, IsThatOfTheDevicesAllocator) {
  static Allocator allocator;
  c10::SetAllocator(at::kPrivateUse1, &allocator);
  EXPECT_EQ(peak_memory_bytes(at::Device(at::kPrivateUse1, 2), 0), 1002);
  const auto memory = device_memory(at::Device(at::kPrivateUse1, 2));
  EXPECT_EQ(memory.allocated, 102);
  EXPECT_EQ(memory.reserved, 5000);
  EXPECT_EQ(memory.free, 7002);
}

TEST(DeviceMemory, OfTheCpuIsThatOfTheRank) {
  EXPECT_EQ(peak_memory_bytes(at::kCPU, 0), memory_snapshot(0).total.peak_bytes);
}

} // namespace
} // namespace pentatron::nn
