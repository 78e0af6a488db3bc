#include <cuda_runtime.h>

#include "pentatron/kernels/common/build.h"

namespace pentatron::kernels {

std::string gpu_name(int device) {
  cudaDeviceProp properties;
  const bool known = cudaGetDeviceProperties(&properties, device) == cudaSuccess;
  return known ? properties.name : "";
}

int64_t gpu_memory(int device) {
  cudaDeviceProp properties;
  const bool known = cudaGetDeviceProperties(&properties, device) == cudaSuccess;
  return known ? static_cast<int64_t>(properties.totalGlobalMem) : 0;
}

int gpu_capability(int device) {
  int major = 0, minor = 0;
  const bool known =
      cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess &&
      cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) == cudaSuccess;
  return known ? 10 * major + minor : 0;
}

} // namespace pentatron::kernels
