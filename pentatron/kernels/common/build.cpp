#include "pentatron/kernels/common/build.h"

namespace pentatron::kernels {

bool built_with_cuda() {
#ifdef PENTATRON_CUDA
  return true;
#else
  return false;
#endif
}

#ifndef PENTATRON_CUDA
std::string gpu_name(int) {
  return "";
}
int gpu_capability(int) {
  return 0;
}
int64_t gpu_memory(int) {
  return 0;
}
#endif

} // namespace pentatron::kernels
