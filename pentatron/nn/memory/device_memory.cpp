#include "pentatron/nn/memory/device_memory.h"

#include <c10/core/CachingDeviceAllocator.h>

#include "pentatron/nn/memory/counting_allocator.h"

namespace pentatron::nn {

int64_t peak_memory_bytes(at::Device device, int rank) {
  if (device.is_cpu()) return memory_snapshot(rank).total.peak_bytes;
  const auto stats = at::getDeviceAllocator(device.type())->getDeviceStats(device.index());
  using Type = c10::CachingAllocator::StatType;
  return stats.allocated_bytes[static_cast<size_t>(Type::AGGREGATE)].peak;
}

} // namespace pentatron::nn
