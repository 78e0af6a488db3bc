// Compiled in place of nccl_backend_cuda.cpp where CUDA or NCCL is not.
#include "pentatron/base/error.h"
#include "pentatron/comm/gpu_ranks.h"

namespace pentatron::comm {

bool nccl_available() {
  return false;
}

Group with_nccl(const Group&, int) {
  raise<CommError>("this build has no nccl backend, so ranks cannot use GPUs\n  try: device=cpu, "
                   "or build with the cuda preset on a machine with NCCL");
}

} // namespace pentatron::comm
