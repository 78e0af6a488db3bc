/// Loops over blocks on OpenMP threads, and the choice of an entry.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>

#include "pentatron/base/error.h"
#include "pentatron/kernels/contract.h"

namespace pentatron::kernels::simd {

/// f(begin, end, block) for every block of [0, n); blocks do not depend on the number of threads.
template <class F> void parallel_blocks(int64_t n, int64_t block, F&& f) {
  const int64_t blocks = (n + block - 1) / block;
  const int threads = static_cast<int>(std::min<int64_t>(num_threads(), blocks));
  if (threads <= 1) {
    for (int64_t b = 0; b < blocks; ++b) f(b * block, std::min(n, (b + 1) * block), b);
    return;
  }
#pragma omp parallel for schedule(static) num_threads(threads)
  for (int64_t b = 0; b < blocks; ++b) f(b * block, std::min(n, (b + 1) * block), b);
}

/// The first entry that takes the arguments; throws ShapeError with every reason if none does.
template <class Args>
const Entry<Args>& choose(std::type_identity_t<std::span<const Entry<Args>>> entries,
                          const char* op, const Args& args, const Context& context) {
  for (const Entry<Args>& entry : entries) {
    if (entry.refuse(args, context).empty()) return entry;
  }
  std::string reasons;
  for (const Entry<Args>& entry : entries) {
    reasons += fmt::format("\n  {}: {}", entry.name, entry.refuse(args, context));
  }
  raise<ShapeError>("{}: no implementation takes the arguments{}", op, reasons);
}

} // namespace pentatron::kernels::simd
