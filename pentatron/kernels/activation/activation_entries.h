/// The implementations behind activation.h; activation.cpp orders them.
#pragma once

#include "pentatron/kernels/activation/activation.h"

namespace pentatron::kernels {

struct ActivationReference {
  static void run(const ActivationForward& args, const Context& context);
  static void run(const ActivationBackward& args, const Context& context);
};

struct ActivationAvx2 {
  static void run(const ActivationForward& args, const Context& context);
  static void run(const ActivationBackward& args, const Context& context);
};

struct ActivationAvx512 {
  static void run(const ActivationForward& args, const Context& context);
  static void run(const ActivationBackward& args, const Context& context);
};

/// Only in builds with PENTATRON_CUDA.
struct ActivationCuda {
  static void run(const ActivationForward& args, const Context& context);
  static void run(const ActivationBackward& args, const Context& context);
};

} // namespace pentatron::kernels
