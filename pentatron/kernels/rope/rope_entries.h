/// The implementations behind rope.h; rope.cpp orders them.
#pragma once

#include "pentatron/kernels/rope/rope.h"

namespace pentatron::kernels {

struct RopeReference {
  static void run(const Rope& args, const Context& context);
};

struct RopeAvx2 {
  static void run(const Rope& args, const Context& context);
};

struct RopeAvx512 {
  static void run(const Rope& args, const Context& context);
};

/// Only in builds with PENTATRON_CUDA.
struct RopeCuda {
  static void run(const Rope& args, const Context& context);
};

} // namespace pentatron::kernels
