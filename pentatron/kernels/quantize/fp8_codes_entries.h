/// The implementations behind fp8_codes.h; fp8_codes.cpp orders them.
#pragma once

#include "pentatron/kernels/quantize/fp8_codes.h"

namespace pentatron::kernels {

struct Fp8CodesReference {
  static void run(const RaiseAmax& args, const Context& context);
  static void run(const Fp8Codes& args, const Context& context);
};

/// Only in builds with PENTATRON_CUDA.
struct Fp8CodesCuda {
  static void run(const RaiseAmax& args, const Context& context);
  static void run(const Fp8Codes& args, const Context& context);
};

} // namespace pentatron::kernels
