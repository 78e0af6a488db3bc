/// What this build of the kernels has.
#pragma once

#include <cstdint>
#include <string>

namespace pentatron::kernels {

/// Whether it has entries for CUDA, wherever it runs.
bool built_with_cuda();

/// Returns the name of GPU `device`, such as "NVIDIA H100 80GB HBM3"; empty in a build without CUDA
/// or if the GPU does not exist.
std::string gpu_name(int device);

/// Returns the compute capability of GPU `device`, such as 90 for an H100; 0 where gpu_name() is
/// empty.
int gpu_capability(int device);

/// Returns the bytes of memory that GPU `device` has; 0 where gpu_name() is empty.
int64_t gpu_memory(int device);

} // namespace pentatron::kernels
