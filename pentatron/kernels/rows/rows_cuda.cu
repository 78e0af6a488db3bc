#include "pentatron/kernels/common/device.cuh"
#include "pentatron/kernels/rows/rows_entries.h"

namespace pentatron::kernels {

namespace {

using namespace cuda;

/// One thread an element; neighbours read neighbouring elements of the same rows.
template <class T> __global__ void sum_rows_kernel(SumRows a) {
  const int64_t total = a.rows * a.cols;
  for (int64_t u = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; u < total;
       u += int64_t{gridDim.x} * blockDim.x) {
    const int64_t r = u / a.cols, i = u % a.cols;
    acc_t<T> sum = 0;
    bool first = true;
    for (int64_t j = 0; j < a.k; ++j) {
      const int64_t place = a.places[r * a.k + j];
      if (place < 0) continue;
      const acc_t<T> value = to_acc(static_cast<const T*>(a.x)[place * a.cols + i]);
      sum = first ? value : sum + value;
      first = false;
    }
    static_cast<T*>(a.y)[u] = from_acc<T>(sum);
  }
}

} // namespace

void SumRowsCuda::run(const SumRows& a, const Context& context) {
  visit_dtype(a.dtype, [&](auto t) {
    launch("sum_rows", sum_rows_kernel<decltype(t)>, stride_blocks(a.rows * a.cols), 256, context,
           a);
  });
}

} // namespace pentatron::kernels
