#include "pentatron/kernels/common/device.cuh"
#include "pentatron/kernels/norm/norm_entries.h"

namespace pentatron::kernels {

namespace {

using namespace cuda;

/// RowLayout::offset, which is host code.
__device__ int64_t offset(const RowLayout& layout, int64_t row, int64_t cols) {
  const int64_t step = layout.stride == 0 ? cols : layout.stride;
  if (layout.group_rows == 0) return row * step;
  return row / layout.group_rows * layout.group_stride + row % layout.group_rows * step;
}

template <class A, class Args> __device__ A weight_at(const Args& a, int64_t i) {
  const A w = load_any<A>(a.weight, a.weight_dtype, i, 1);
  return a.weight != nullptr && a.zero_centered ? w + 1 : w;
}

/// One block a row.
template <class T> __global__ void forward(NormForward a) {
  using A = acc_t<T>;
  const int64_t r = blockIdx.x, n = a.cols;
  const bool layer_norm = a.kind == NormKind::kLayerNorm;
  const T* s = static_cast<const T*>(a.x) + offset(a.x_rows, r, n);
  A total = 0;
  if (a.residual != nullptr) {
    const T* residual = static_cast<const T*>(a.residual) + offset(a.residual_rows, r, n);
    T* sum = static_cast<T*>(a.sum) + offset(a.sum_rows, r, n);
    for (int64_t i = threadIdx.x; i < n; i += blockDim.x)
      sum[i] = from_acc<T>(to_acc(s[i]) + to_acc(residual[i]));
    s = sum; // a thread reads only what it wrote
  }
  A mean = 0;
  if (layer_norm) {
    for (int64_t i = threadIdx.x; i < n; i += blockDim.x) total += to_acc(s[i]);
    mean = block_sum(total) / static_cast<A>(n);
  }
  A square = 0;
  for (int64_t i = threadIdx.x; i < n; i += blockDim.x) {
    const A d = to_acc(s[i]) - mean;
    square += d * d;
  }
  const A rstd = 1 / sqrt(block_sum(square) / static_cast<A>(n) + static_cast<A>(a.eps));
  T* y = static_cast<T*>(a.y) + offset(a.y_rows, r, n);
  for (int64_t i = threadIdx.x; i < n; i += blockDim.x) {
    const A bias = load_any<A>(a.bias, a.weight_dtype, i, 0);
    y[i] = from_acc<T>(weight_at<A>(a, i) * ((to_acc(s[i]) - mean) * rstd) + bias);
  }
  if (threadIdx.x == 0) {
    if (layer_norm && a.mean != nullptr) static_cast<A*>(a.mean)[r] = mean;
    if (a.rstd != nullptr) static_cast<A*>(a.rstd)[r] = rstd;
  }
}

/// One block a row.
template <class T> __global__ void backward_input(NormBackward a) {
  using A = acc_t<T>;
  const int64_t r = blockIdx.x, n = a.cols;
  const bool layer_norm = a.kind == NormKind::kLayerNorm;
  const T* dy = static_cast<const T*>(a.dy) + offset(a.dy_rows, r, n);
  const T* x = static_cast<const T*>(a.x) + offset(a.x_rows, r, n);
  const T* dsum =
      a.dsum == nullptr ? nullptr : static_cast<const T*>(a.dsum) + offset(a.dsum_rows, r, n);
  T* dx = static_cast<T*>(a.dx) + offset(a.dx_rows, r, n);
  const A mean = layer_norm ? static_cast<const A*>(a.mean)[r] : 0;
  const A rstd = static_cast<const A*>(a.rstd)[r];
  A g_sum = 0, g_xhat_sum = 0;
  for (int64_t i = threadIdx.x; i < n; i += blockDim.x) {
    const A g = weight_at<A>(a, i) * to_acc(dy[i]);
    g_sum += g;
    g_xhat_sum += g * ((to_acc(x[i]) - mean) * rstd);
  }
  const A g_mean = layer_norm ? block_sum(g_sum) / static_cast<A>(n) : 0;
  const A g_xhat_mean = block_sum(g_xhat_sum) / static_cast<A>(n);
  for (int64_t i = threadIdx.x; i < n; i += blockDim.x) {
    const A xhat = (to_acc(x[i]) - mean) * rstd;
    const A d = rstd * (weight_at<A>(a, i) * to_acc(dy[i]) - g_mean - xhat * g_xhat_mean);
    dx[i] = from_acc<T>(dsum != nullptr ? d + to_acc(dsum[i]) : d);
  }
}

/// 32 columns a block; thread (x, y) sums the rows y, y + 32, ... of column x, then row 0 of the
/// block adds up in order.
template <class T> __global__ void backward_weight(NormBackward a) {
  using A = acc_t<T>;
  __shared__ A dweight[32][33], dbias[32][33];
  const bool layer_norm = a.kind == NormKind::kLayerNorm;
  const int64_t n = a.cols, i = blockIdx.x * 32 + threadIdx.x;
  A weight_sum = 0, bias_sum = 0;
  if (i < n)
    for (int64_t r = threadIdx.y; r < a.rows; r += 32) {
      const A dy = to_acc(static_cast<const T*>(a.dy)[offset(a.dy_rows, r, n) + i]);
      const A x = to_acc(static_cast<const T*>(a.x)[offset(a.x_rows, r, n) + i]);
      const A mean = layer_norm ? static_cast<const A*>(a.mean)[r] : 0;
      weight_sum += dy * ((x - mean) * static_cast<const A*>(a.rstd)[r]);
      bias_sum += dy;
    }
  dweight[threadIdx.y][threadIdx.x] = weight_sum;
  dbias[threadIdx.y][threadIdx.x] = bias_sum;
  __syncthreads();
  if (threadIdx.y != 0 || i >= n) return;
  weight_sum = bias_sum = 0;
  for (int y = 0; y < 32; ++y) {
    weight_sum += dweight[y][threadIdx.x];
    bias_sum += dbias[y][threadIdx.x];
  }
  if (a.dweight != nullptr) static_cast<A*>(a.dweight)[i] += weight_sum;
  if (a.dbias != nullptr) static_cast<A*>(a.dbias)[i] += bias_sum;
}

} // namespace

void NormCuda::run(const NormForward& a, const Context& context) {
  const auto stream = static_cast<cudaStream_t>(context.stream);
  const auto rows = static_cast<unsigned>(a.rows);
  visit_dtype(a.dtype,
              [&](auto t) { forward<decltype(t)><<<rows, row_threads(a.cols), 0, stream>>>(a); });
  check_launch("norm_forward");
}

void NormCuda::run(const NormBackward& a, const Context& context) {
  const auto stream = static_cast<cudaStream_t>(context.stream);
  const auto rows = static_cast<unsigned>(a.rows),
             column_blocks = static_cast<unsigned>((a.cols + 31) / 32);
  visit_dtype(a.dtype, [&](auto t) {
    using T = decltype(t);
    // dx may overwrite x or dy, so it comes last.
    if (a.dweight != nullptr || a.dbias != nullptr)
      backward_weight<T><<<column_blocks, dim3(32, 32), 0, stream>>>(a);
    if (a.dx != nullptr) backward_input<T><<<rows, row_threads(a.cols), 0, stream>>>(a);
  });
  check_launch("norm_backward");
}

} // namespace pentatron::kernels
