/// Memory of tensors on the device that a rank trains on.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace pentatron::nn {

/// The most bytes of tensors that lived at once: on a CPU those of thread rank `rank` (the counting
/// allocator), else those of the device, by its own allocator. Bytes that an allocator keeps for
/// later are not counted.
int64_t peak_memory_bytes(at::Device device, int rank);

} // namespace pentatron::nn
