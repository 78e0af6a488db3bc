/// The implementations behind fp8_blocks.h; fp8_blocks.cpp orders them.
#pragma once

#include "pentatron/kernels/quantize/fp8_blocks.h"

namespace pentatron::kernels {

struct Fp8BlocksReference {
  static void run(const Fp8Blocks& args, const Context& context);
};

/// Only in builds with PENTATRON_CUDA.
struct Fp8BlocksCuda {
  static void run(const Fp8Blocks& args, const Context& context);
};

} // namespace pentatron::kernels
