#include "pentatron/nn/memory/device_memory.h"

#include <c10/core/CachingDeviceAllocator.h>

#include "pentatron/nn/memory/counting_allocator.h"

namespace pentatron::nn {

int64_t peak_memory_bytes(at::Device device, int rank) {
  if (device.is_cpu()) return memory_snapshot(rank).total.peak_bytes;
  return device_memory(device).peak_allocated;
}

DeviceMemory device_memory(at::Device device) {
  c10::DeviceAllocator* const allocator = at::getDeviceAllocator(device.type());
  const auto stats = allocator->getDeviceStats(device.index());
  constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  return {.allocated = stats.allocated_bytes[kAll].current,
          .peak_allocated = stats.allocated_bytes[kAll].peak,
          .reserved = stats.reserved_bytes[kAll].current,
          .peak_reserved = stats.reserved_bytes[kAll].peak,
          .free = static_cast<int64_t>(allocator->getMemoryInfo(device.index()).first)};
}

} // namespace pentatron::nn
