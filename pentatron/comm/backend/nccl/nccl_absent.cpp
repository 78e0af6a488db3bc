// Compiled in place of nccl_backend_cuda.cpp where CUDA or NCCL is not.
#include "pentatron/base/error.h"
#include "pentatron/comm/nccl.h"

namespace pentatron::comm {

bool nccl_available() {
  return false;
}

Group with_nccl(const Group&, int) {
  raise<CommError>("the nccl backend is not in this build, so ranks have no GPUs\n  try: "
                   "device=cpu, or a build with the cuda preset where NCCL is");
}

} // namespace pentatron::comm
