/// The implementations behind hadamard.h; hadamard.cpp orders them.
#pragma once

#include "pentatron/kernels/quantize/hadamard.h"

namespace pentatron::kernels {

struct HadamardReference {
  static void run(const Hadamard& args, const Context& context);
};

struct HadamardAvx2 {
  static void run(const Hadamard& args, const Context& context);
};

struct HadamardAvx512 {
  static void run(const Hadamard& args, const Context& context);
};

/// Only in builds with PENTATRON_CUDA.
struct HadamardCuda {
  static void run(const Hadamard& args, const Context& context);
};

} // namespace pentatron::kernels
