#include "pentatron/kernels/common/device.cuh"
#include "pentatron/kernels/rope/rope_entries.h"

namespace pentatron::kernels {

namespace {

using namespace cuda;

/// One thread a pair, or a feature that is copied.
template <class T> __global__ void rotate(Rope a) {
  using A = acc_t<T>;
  const int64_t half = a.rotary_dim / 2, rest = a.head_size - a.rotary_dim, units = half + rest;
  const int64_t total = a.tokens * a.heads * units;
  for (int64_t u = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; u < total;
       u += int64_t{gridDim.x} * blockDim.x) {
    const int64_t i = u % units, h = u / units % a.heads, t = u / units / a.heads;
    const T* x = static_cast<const T*>(a.x) + t * a.x_token_stride + h * a.x_head_stride;
    T* y = static_cast<T*>(a.y) + t * a.y_token_stride + h * a.y_head_stride;
    if (i >= half) {
      y[half + i] = x[half + i];
      continue;
    }
    const int64_t at = a.positions[t] * half + i;
    const A c = static_cast<const A*>(a.cos)[at];
    const A s = a.transpose ? -static_cast<const A*>(a.sin)[at] : static_cast<const A*>(a.sin)[at];
    const int64_t one = a.interleaved ? 2 * i : i, two = a.interleaved ? 2 * i + 1 : i + half;
    const A first = to_acc(x[one]), second = to_acc(x[two]);
    y[one] = from_acc<T>(first * c - second * s);
    y[two] = from_acc<T>(second * c + first * s);
  }
}

} // namespace

void RopeCuda::run(const Rope& a, const Context& context) {
  const auto stream = static_cast<cudaStream_t>(context.stream);
  const unsigned blocks = stride_blocks(a.tokens * a.heads * (a.head_size - a.rotary_dim / 2));
  visit_dtype(a.dtype, [&](auto t) { rotate<decltype(t)><<<blocks, 256, 0, stream>>>(a); });
  check_launch("rope");
}

} // namespace pentatron::kernels
