/// The implementations behind rows.h; rows.cpp orders them.
#pragma once

#include "pentatron/kernels/rows/rows.h"

namespace pentatron::kernels {

struct SumRowsReference {
  static void run(const SumRows& args, const Context& context);
};

struct SumRowsAvx2 {
  static void run(const SumRows& args, const Context& context);
};

struct SumRowsAvx512 {
  static void run(const SumRows& args, const Context& context);
};

/// Only in builds with PENTATRON_CUDA.
struct SumRowsCuda {
  static void run(const SumRows& args, const Context& context);
};

} // namespace pentatron::kernels
