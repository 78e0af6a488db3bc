#include <algorithm>

#include "pentatron/kernels/activation/activation_entries.h"
#include "pentatron/kernels/activation/activation_functions.h"
#include "pentatron/kernels/common/device.cuh"

namespace pentatron::kernels {

namespace {

using namespace cuda;

/// Column `at` of row r of the input, bias added.
template <class T, class Args> __device__ acc_t<T> input(const Args& a, int64_t r, int64_t at) {
  using A = acc_t<T>;
  return to_acc(static_cast<const T*>(a.x)[r * a.x_stride + at]) +
         load_any<A>(a.bias, a.bias_dtype, at, 0);
}

/// Of row r; 1: none.
template <class A, class Args> __device__ A row_scale(const Args& a, int64_t r) {
  return a.row_scale == nullptr ? A{1} : static_cast<const A*>(a.row_scale)[r];
}

template <class T> __global__ void forward(ActivationForward a) {
  using A = acc_t<T>;
  const int64_t f = a.cols, total = a.rows * f;
  for (int64_t u = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; u < total;
       u += int64_t{gridDim.x} * blockDim.x) {
    const int64_t r = u / f, i = u % f;
    const A in = input<T>(a, r, i);
    const A value = a.gated ? evaluate_gated<A>(a.kind, a.gate, in, input<T>(a, r, f + i)).value
                            : evaluate<A>(a.kind, in).value;
    static_cast<T*>(a.y)[r * a.y_stride + i] = from_acc<T>(value * row_scale<A>(a, r));
  }
}

/// Gradients of the (gate's) input and, if gated, of the up part.
template <class T>
__device__ void derive(const ActivationBackward& a, int64_t r, int64_t i, acc_t<T>& d,
                       acc_t<T>& d_up) {
  using A = acc_t<T>;
  const A in = input<T>(a, r, i),
          dy = to_acc(static_cast<const T*>(a.dy)[r * a.dy_stride + i]) * row_scale<A>(a, r);
  if (!a.gated) {
    d = dy * evaluate<A>(a.kind, in).slope;
    d_up = 0;
    return;
  }
  const Gated<A> act = evaluate_gated<A>(a.kind, a.gate, in, input<T>(a, r, a.cols + i));
  d = dy * act.d_gate;
  d_up = dy * act.d_up;
}

template <class T> __global__ void backward(ActivationBackward a) {
  using A = acc_t<T>;
  const int64_t f = a.cols, total = a.rows * f;
  for (int64_t u = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; u < total;
       u += int64_t{gridDim.x} * blockDim.x) {
    const int64_t r = u / f, i = u % f;
    A d, d_up;
    derive<T>(a, r, i, d, d_up);
    T* dx = static_cast<T*>(a.dx) + r * a.dx_stride;
    dx[i] = from_acc<T>(d);
    if (a.gated) dx[f + i] = from_acc<T>(d_up);
  }
}

/// A block for each row.
template <class T> __global__ void backward_scale(ActivationBackward a) {
  using A = acc_t<T>;
  for (int64_t r = blockIdx.x; r < a.rows; r += gridDim.x) {
    A total = 0;
    for (int64_t i = threadIdx.x; i < a.cols; i += blockDim.x) {
      const A in = input<T>(a, r, i);
      const A value = a.gated
                          ? evaluate_gated<A>(a.kind, a.gate, in, input<T>(a, r, a.cols + i)).value
                          : evaluate<A>(a.kind, in).value;
      total += to_acc(static_cast<const T*>(a.dy)[r * a.dy_stride + i]) * value;
    }
    total = block_sum(total);
    if (threadIdx.x == 0) static_cast<A*>(a.drow_scale)[r] = total;
  }
}

/// 32 columns a block; thread (x, y) sums the rows y, y + 32, ... of column x, then row 0 of the
/// block adds up in order.
template <class T> __global__ void backward_bias(ActivationBackward a) {
  using A = acc_t<T>;
  __shared__ A sums[2][32][33];
  const int64_t f = a.cols, i = blockIdx.x * 32 + threadIdx.x;
  A sum = 0, sum_up = 0;
  if (i < f)
    for (int64_t r = threadIdx.y; r < a.rows; r += 32) {
      A d, d_up;
      derive<T>(a, r, i, d, d_up);
      sum += d;
      sum_up += d_up;
    }
  sums[0][threadIdx.y][threadIdx.x] = sum;
  sums[1][threadIdx.y][threadIdx.x] = sum_up;
  __syncthreads();
  if (threadIdx.y != 0 || i >= f) return;
  sum = sum_up = 0;
  for (int y = 0; y < 32; ++y) {
    sum += sums[0][y][threadIdx.x];
    sum_up += sums[1][y][threadIdx.x];
  }
  static_cast<A*>(a.dbias)[i] += sum;
  if (a.gated) static_cast<A*>(a.dbias)[f + i] += sum_up;
}

} // namespace

void ActivationCuda::run(const ActivationForward& a, const Context& context) {
  const auto stream = static_cast<cudaStream_t>(context.stream);
  visit_dtype(a.dtype, [&](auto t) {
    forward<decltype(t)><<<stride_blocks(a.rows * a.cols), 256, 0, stream>>>(a);
  });
  check_launch("activation_forward");
}

void ActivationCuda::run(const ActivationBackward& a, const Context& context) {
  const auto stream = static_cast<cudaStream_t>(context.stream);
  const auto column_blocks = static_cast<unsigned>((a.cols + 31) / 32);
  visit_dtype(a.dtype, [&](auto t) {
    using T = decltype(t);
    // dx may overwrite x or dy, so it comes last.
    if (a.drow_scale != nullptr)
      backward_scale<T>
          <<<static_cast<unsigned>(std::min<int64_t>(a.rows, 65535)), 256, 0, stream>>>(a);
    if (a.dbias != nullptr) backward_bias<T><<<column_blocks, dim3(32, 32), 0, stream>>>(a);
    backward<T><<<stride_blocks(a.rows * a.cols), 256, 0, stream>>>(a);
  });
  check_launch("activation_backward");
}

} // namespace pentatron::kernels
