/// The implementations behind norm.h; norm.cpp orders them.
#pragma once

#include "pentatron/kernels/norm/norm.h"

namespace pentatron::kernels {

struct NormReference {
  static void run(const NormForward& args, const Context& context);
  static void run(const NormBackward& args, const Context& context);
};

struct NormAvx2 {
  static void run(const NormForward& args, const Context& context);
  static void run(const NormBackward& args, const Context& context);
};

struct NormAvx512 {
  static void run(const NormForward& args, const Context& context);
  static void run(const NormBackward& args, const Context& context);
};

/// Only in builds with PENTATRON_CUDA.
struct NormCuda {
  static void run(const NormForward& args, const Context& context);
  static void run(const NormBackward& args, const Context& context);
};

} // namespace pentatron::kernels
