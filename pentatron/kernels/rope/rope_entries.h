/// The implementations behind rope.h; rope.cpp orders them.
#pragma once

#include <string>

#include "pentatron/kernels/rope/rope.h"

namespace pentatron::kernels {

struct RopeReference {
  static std::string refuse(const Rope& args, const Context& context);
  static void run(const Rope& args, const Context& context);
};

struct RopeAvx2 {
  static std::string refuse(const Rope& args, const Context& context);
  static void run(const Rope& args, const Context& context);
};

struct RopeAvx512 {
  static std::string refuse(const Rope& args, const Context& context);
  static void run(const Rope& args, const Context& context);
};

/// Only in builds with PENTATRON_CUDA.
struct RopeCuda {
  static std::string refuse(const Rope& args, const Context& context);
  static void run(const Rope& args, const Context& context);
};

} // namespace pentatron::kernels
