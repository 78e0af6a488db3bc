// Optimizers and flat buffers on the CPU, thread by thread, as one more entry of their lists.
#include "tests/kernels/emulated/unit.h"

#include "pentatron/kernels/optimizer/optimizer_entries.h"

namespace pentatron::kernels::emulated_optimizer {

using namespace optimizer_cuda;

void sum_of_squares(const SumOfSquaresArgs& args, const Context& context) {
  optimizer_cuda::sum_of_squares(args, WithWorkspace(args, context));
}

} // namespace pentatron::kernels::emulated_optimizer

#define optimizer_cuda emulated_optimizer
#include "pentatron/kernels/optimizer/buffer.cpp"
#include "pentatron/kernels/optimizer/optimizer.cpp"
#undef optimizer_cuda
#include "pentatron/kernels/optimizer/optimizer_cuda.cu"
