// Optimizers and flat buffers on the CPU, thread by thread, as one more entry of their lists.
#include "tests/kernels/emulated/unit.h"

#include "pentatron/kernels/optimizer/optimizer_entries.h"

namespace pentatron::kernels::emulated_optimizer {

using namespace optimizer_cuda;

void sum_of_squares(const SumOfSquaresArgs& args, const Context& context) {
  optimizer_cuda::sum_of_squares(args, WithWorkspace(args, context));
}

void zero(const ZeroArgs& args, const Context& context) {
  optimizer_cuda::zero(args, context);
#ifdef PENTATRON_TESTS_ON_GPU
  testing::wait_for_gpu(); // it launches no kernel
#endif
}

} // namespace pentatron::kernels::emulated_optimizer

#define optimizer_cuda emulated_optimizer
#include "pentatron/kernels/optimizer/buffer.cpp"
#include "pentatron/kernels/optimizer/narrow.cpp"
#include "pentatron/kernels/optimizer/optimizer.cpp"
#undef optimizer_cuda
#ifndef PENTATRON_TESTS_ON_GPU
#include "pentatron/kernels/optimizer/optimizer_cuda.cu"
#endif
