#include "pentatron/kernels/common/device.cuh"
#include "pentatron/kernels/quantize/hadamard_entries.h"

namespace pentatron::kernels {

namespace {

using namespace cuda;

constexpr int kSize = static_cast<int>(kHadamardSize);

/// Bit i: sign i is a minus.
constexpr unsigned kMinus = [] {
  unsigned bits = 0;
  for (int i = 0; i < kSize; ++i)
    if (kHadamardSigns[static_cast<size_t>(i)] < 0) bits |= 1u << i;
  return bits;
}();

/// A thread: sixteen rows of a column. Sums are those of the reference, in its order.
template <class T> __global__ void transform_rows(Hadamard h, int64_t blocks) {
  using A = acc_t<T>;
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < blocks * h.cols;
       i += int64_t{gridDim.x} * blockDim.x) {
    const int64_t row = i / h.cols * kSize, col = i % h.cols;
    const T* const x = static_cast<const T*>(h.x) + row * h.cols + col;
    A* const out = static_cast<A*>(h.out) + row * h.cols + col;
    A v[kSize];
#pragma unroll
    for (int r = 0; r < kSize; ++r) {
      v[r] = row + r < h.rows ? to_acc(x[r * h.cols]) : A{0};
      if (!h.inverse && (kMinus >> r & 1u) != 0) v[r] = -v[r];
    }
#pragma unroll
    for (int apart = 1; apart < kSize; apart *= 2) {
#pragma unroll
      for (int r = 0; r < kSize; ++r) {
        if ((r & apart) != 0) continue;
        const A sum = v[r] + v[r + apart];
        v[r + apart] = v[r] - v[r + apart];
        v[r] = sum;
      }
    }
#pragma unroll
    for (int r = 0; r < kSize; ++r) {
      v[r] *= A{0.25};
      out[r * h.cols] = h.inverse && (kMinus >> r & 1u) != 0 ? -v[r] : v[r];
    }
  }
}

} // namespace

void HadamardCuda::run(const Hadamard& h, const Context& context) {
  const int64_t blocks = hadamard_rows(h.rows) / kHadamardSize;
  if (blocks * h.cols == 0) return;
  visit_dtype(h.dtype, [&](auto t) {
    launch("hadamard", transform_rows<decltype(t)>, stride_blocks(blocks * h.cols), 256, context, h,
           blocks);
  });
}

} // namespace pentatron::kernels
