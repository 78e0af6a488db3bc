#include "pentatron/kernels/common/device.cuh"
#include "pentatron/kernels/common/philox.cuh"
#include "pentatron/kernels/dropout/dropout_entries.h"

namespace pentatron::kernels {

namespace {

using namespace cuda;

/// One thread a counter: four features that are 16 apart. `first_group` is the global index of the
/// first group of 64.
template <class T>
__global__ void dropout_kernel(Dropout a, uint2 key, uint64_t threshold, double scale,
                               int64_t first_group, int64_t groups) {
  using A = acc_t<T>;
  const int64_t total = a.rows * groups * 16;
  for (int64_t u = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; u < total;
       u += int64_t{gridDim.x} * blockDim.x) {
    const int64_t lane = u % 16, group = first_group + u / 16 % groups, r = u / 16 / groups;
    const uint64_t id =
        a.row_ids != nullptr ? a.row_ids[r] : a.row_begin + static_cast<uint64_t>(r) * a.row_step;
    uint32_t words[4] = {static_cast<uint32_t>(id), static_cast<uint32_t>(id >> 32),
                         static_cast<uint32_t>(group * 16 + lane), a.site};
    philox(words, key.x, key.y);
    for (int w = 0; w < 4; ++w) {
      const int64_t col = group * 64 + w * 16 + lane - a.feature_offset;
      if (col < 0 || col >= a.cols) continue;
      A value = words[w] >= threshold ? to_acc(static_cast<const T*>(a.x)[r * a.x_stride + col]) *
                                            static_cast<A>(scale)
                                      : A{0};
      if (a.residual != nullptr)
        value += to_acc(static_cast<const T*>(a.residual)[r * a.residual_stride + col]);
      static_cast<T*>(a.y)[r * a.y_stride + col] = from_acc<T>(value);
    }
  }
}

} // namespace

void DropoutCuda::run(const Dropout& a, const Context& context) {
  const int64_t first_group = a.feature_offset / 64;
  const int64_t groups = (a.feature_offset + a.cols - 1) / 64 - first_group + 1;
  const double scale = a.p < 1 ? 1 / (1 - a.p) : 0;
  visit_dtype(a.dtype, [&](auto t) {
    launch("dropout", dropout_kernel<decltype(t)>, stride_blocks(a.rows * groups * 16), 256,
           context, a, make_uint2(a.key[0], a.key[1]), dropout_threshold(a.p), scale, first_group,
           groups);
  });
}

} // namespace pentatron::kernels
