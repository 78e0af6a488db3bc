/// The implementations behind dropout.h; dropout.cpp orders them.
#pragma once

#include "pentatron/kernels/dropout/dropout.h"

namespace pentatron::kernels {

struct DropoutReference {
  static void run(const Dropout& args, const Context& context);
};

struct DropoutAvx2 {
  static void run(const Dropout& args, const Context& context);
};

struct DropoutAvx512 {
  static void run(const Dropout& args, const Context& context);
};

/// Only in builds with PENTATRON_CUDA.
struct DropoutCuda {
  static void run(const Dropout& args, const Context& context);
};

} // namespace pentatron::kernels
