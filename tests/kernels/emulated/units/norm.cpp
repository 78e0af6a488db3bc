// Norms on the CPU, thread by thread, as one more entry of its list.
#include "tests/kernels/emulated/unit.h"

#include "pentatron/kernels/norm/norm_entries.h"

namespace pentatron::kernels {

struct EmulatedNorm {
  static void run(const NormForward& args, const Context& context) { NormCuda::run(args, context); }
  static void run(const NormBackward& args, const Context& context) {
    NormCuda::run(args, WithWorkspace(args, context));
  }
};

} // namespace pentatron::kernels

#define NormCuda EmulatedNorm
#include "pentatron/kernels/norm/norm.cpp"
#undef NormCuda
#ifndef PENTATRON_TESTS_ON_GPU
#include "pentatron/kernels/norm/norm_cuda.cu"
#endif
