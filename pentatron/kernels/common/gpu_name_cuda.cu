#include <cuda_runtime.h>

#include "pentatron/kernels/common/build.h"

namespace pentatron::kernels {

std::string gpu_name(int device) {
  cudaDeviceProp properties;
  const bool known = cudaGetDeviceProperties(&properties, device) == cudaSuccess;
  return known ? properties.name : "";
}

} // namespace pentatron::kernels
