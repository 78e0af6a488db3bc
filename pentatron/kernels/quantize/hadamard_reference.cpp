#include <algorithm>

#include "pentatron/kernels/common/parallel.h"
#include "pentatron/kernels/common/scalar.h"
#include "pentatron/kernels/quantize/hadamard_entries.h"

namespace pentatron::kernels {

namespace {

/// Sums and differences of rows 1, 2, 4 and 8 apart, and a quarter of them: H / 4 from the left.
template <class A> void butterfly(A* block, int64_t cols) {
  for (int64_t apart = 1; apart < kHadamardSize; apart *= 2)
    for (int64_t i = 0; i < kHadamardSize; ++i) {
      if ((i & apart) != 0) continue;
      A *const a = block + i * cols, *const b = block + (i + apart) * cols;
      for (int64_t c = 0; c < cols; ++c) {
        const A sum = a[c] + b[c];
        b[c] = a[c] - b[c];
        a[c] = sum;
      }
    }
  for (int64_t i = 0; i < kHadamardSize * cols; ++i) block[i] *= A{0.25};
}

template <class A> void change_signs(A* block, int64_t cols) {
  for (int64_t i = 0; i < kHadamardSize; ++i)
    if (kHadamardSigns[static_cast<size_t>(i)] < 0)
      for (int64_t c = 0; c < cols; ++c) block[i * cols + c] = -block[i * cols + c];
}

template <class T> void transform(const Hadamard& h) {
  using A = acc_t<T>;
  parallel_blocks(
      hadamard_rows(h.rows) / kHadamardSize, 1, [&](int64_t begin, int64_t end, int64_t) {
        for (int64_t row = begin * kHadamardSize; row < end * kHadamardSize; row += kHadamardSize) {
          A* const block = static_cast<A*>(h.out) + row * h.cols;
          const int64_t given = std::min(kHadamardSize, h.rows - row) * h.cols;
          const T* const x = static_cast<const T*>(h.x) + row * h.cols;
          for (int64_t i = 0; i < given; ++i) block[i] = to_acc(x[i]);
          std::fill(block + given, block + kHadamardSize * h.cols, A{0});
          if (!h.inverse) change_signs(block, h.cols);
          butterfly(block, h.cols);
          if (h.inverse) change_signs(block, h.cols);
        }
      });
}

} // namespace

void HadamardReference::run(const Hadamard& args, const Context&) {
  visit_dtype(args.dtype, [&]<class T>(T) { transform<T>(args); });
}

} // namespace pentatron::kernels
