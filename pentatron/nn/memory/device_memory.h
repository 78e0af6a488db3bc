/// Memory of tensors on the device that a rank trains on.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace pentatron::nn {

/// The most bytes of tensors that lived at once: on a CPU those of thread rank `rank` (the counting
/// allocator), else those of the device, by its own allocator. Bytes that an allocator keeps for
/// later are not counted.
int64_t peak_memory_bytes(at::Device device, int rank);

/// What the caching allocator of a device that is not a CPU says, in bytes.
struct DeviceMemory {
  int64_t allocated = 0, peak_allocated = 0; ///< of tensors
  int64_t reserved = 0, peak_reserved = 0;   ///< with what it keeps for later
  int64_t free = 0;                          ///< of the device, by its driver
};
DeviceMemory device_memory(at::Device device);

} // namespace pentatron::nn
