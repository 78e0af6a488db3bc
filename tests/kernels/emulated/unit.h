/// What a file of units/ needs before it includes an operator's list of entries and its .cu file:
/// the list takes the CUDA entries, which accept the CPU.
#pragma once

#include <cstddef>
#include <vector>

#include "pentatron/kernels/common/dispatch.h"
#include "pentatron/kernels/common/refuse.h"
#include "tests/kernels/emulated/emulation.h"

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

} // namespace pentatron::kernels

#define PENTATRON_CUDA 1
#define refuse_unless_cuda refuse_unless_cpu
