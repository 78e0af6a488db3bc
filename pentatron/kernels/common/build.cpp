#include "pentatron/kernels/common/build.h"

namespace pentatron::kernels {

bool built_with_cuda() {
#ifdef PENTATRON_CUDA
  return true;
#else
  return false;
#endif
}

} // namespace pentatron::kernels
