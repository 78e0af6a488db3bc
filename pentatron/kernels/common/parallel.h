/// Loops over blocks and rows on OpenMP threads.
#pragma once

#include <algorithm>
#include <cstdint>

#include "pentatron/kernels/contract.h"

namespace pentatron::kernels {

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

/// f(row, begin, end) for the columns of `rows` rows, cut into parts of at most `block`.
template <class F> void parallel_rows(int64_t rows, int64_t cols, int64_t block, F&& f) {
  if (cols <= 0) return;
  const int64_t parts = (cols + block - 1) / block;
  parallel_blocks(rows * parts, std::max<int64_t>(1, block / cols),
                  [&](int64_t begin, int64_t end, int64_t) {
                    for (int64_t i = begin; i < end; ++i) {
                      const int64_t from = i % parts * block;
                      f(i / parts, from, std::min(cols, from + block));
                    }
                  });
}

} // namespace pentatron::kernels
