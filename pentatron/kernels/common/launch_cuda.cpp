#include "pentatron/base/error.h"
#include "pentatron/kernels/common/cuda_launch.h"

namespace pentatron::kernels {

void check_cuda_launch(const char* op, int code, const char* text) {
  if (code != 0)
    raise<Error>("{} could not be started on the GPU: {} (CUDA error {})", op, text, code);
}

} // namespace pentatron::kernels
