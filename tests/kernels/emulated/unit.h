/// What a file of units/ needs before it includes an operator's list of entries and its .cu file:
/// the list takes the CUDA entries, which accept the CPU.
///
/// With PENTATRON_RECORDED they run for CUDA tensors only (tests/roofline).
///
/// With PENTATRON_TESTS_ON_GPU the entries are those of the build, for a GPU, in memory that both
/// reach (../gpu/main.cpp); where there is no GPU they refuse.
#pragma once

#include <cstddef>
#include <vector>

#include "pentatron/kernels/common/dispatch.h"
#include "pentatron/kernels/common/refuse.h"
#ifdef PENTATRON_TESTS_ON_GPU
#include "tests/kernels/gpu/shared_memory.h"
#else
#include "tests/kernels/emulated/emulation.h"
#endif

namespace pentatron::kernels {

/// The context with a workspace, which tests of the CPU's entries leave out.
template <class Args> class WithWorkspace {
 public:
  WithWorkspace(const Args& args, const Context& context)
      : memory_(workspace_bytes(args)), context_(context) {
    if (context.workspace.size() < memory_.size()) context_.workspace = memory_;
  }
  operator const Context&() const { return context_; }

 private:
  std::vector<std::byte> memory_;
  Context context_;
};

#ifdef PENTATRON_TESTS_ON_GPU
template <class Args> std::string refuse_without_gpu(const Args& args, const Context& context) {
  return testing::gpu_answers() ? refuse_unless_cpu(args, context) : "there is no GPU";
}
#endif

} // namespace pentatron::kernels

#define PENTATRON_CUDA 1
#ifdef PENTATRON_TESTS_ON_GPU
#define refuse_unless_cuda refuse_without_gpu
#elif !defined(PENTATRON_RECORDED)
#define refuse_unless_cuda refuse_unless_cpu
#endif
