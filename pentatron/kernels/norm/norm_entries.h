/// The implementations behind norm.h; norm.cpp orders them.
#pragma once

#include <algorithm>

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

/// CUDA sums the gradients of weights over at most 1056 chunks of so many rows, eight for each of
/// the 132 multiprocessors of an H100.
inline int64_t norm_cuda_chunk_rows(int64_t rows) {
  return std::max<int64_t>(16, (rows + 1055) / 1056);
}

/// Only in builds with PENTATRON_CUDA.
struct NormCuda {
  static void run(const NormForward& args, const Context& context);
  static void run(const NormBackward& args, const Context& context);
};

} // namespace pentatron::kernels
