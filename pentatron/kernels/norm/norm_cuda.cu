#include <algorithm>

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

/// Which row a thread works on: a block has one row, or with blockDim.y > 1 each of its warps one.
__device__ int64_t own_row() {
  return blockIdx.x * int64_t{blockDim.y} + threadIdx.y;
}
/// Sum over the threads of a row.
template <class A> __device__ A row_sum(A value) {
  return blockDim.y > 1 ? warp_sum(value) : block_sum(value);
}

/// A thread keeps so many packs of a row in registers, so that a row is read once. Few, and many
/// threads a row: a long kernel waits for its instructions, not for memory.
constexpr int kKept = 2;

/// Calls f(p, i) for the thread's packs, at most K: the p-th begins at column i.
template <int K, int V, class F> __device__ void each_pack(int64_t cols, F&& f) {
#pragma unroll
  for (int p = 0; p < K; ++p) {
    const int64_t i = (p * int64_t{blockDim.x} + threadIdx.x) * V;
    if (i < cols) f(p, i);
  }
}

/// V elements of a weight or bias. Of type W, by 16 bytes; W = void: of any type, which makes long
/// code, and a kernel that is unrolled must not be longer than the instruction cache.
template <class W, int V, class A>
__device__ void load_vector(const void* p, DType dtype, int64_t i, A missing, A (&out)[V]) {
  if constexpr (std::is_void_v<W>) {
    load_any<V, A>(p, dtype, i, missing, out);
  } else if (p == nullptr) {
    for (int v = 0; v < V; ++v) out[v] = missing;
  } else {
    acc_t<W> part[V];
    load_row<true>(static_cast<const W*>(p) + i, part);
    for (int v = 0; v < V; ++v) out[v] = static_cast<A>(part[v]);
  }
}

/// Weights of V columns.
template <class W, int V, class A, class Args>
__device__ void load_weights(const Args& a, int64_t i, A (&w)[V]) {
  load_vector<W, V, A>(a.weight, a.weight_dtype, i, 1, w);
  if (a.weight != nullptr && a.zero_centered)
    for (int v = 0; v < V; ++v) w[v] += 1;
}

/// Rows of at most kKept packs a thread.
template <class T, class W, int V, bool layer_norm>
__global__ __launch_bounds__(1024) void forward(NormForward a) {
  using A = acc_t<T>;
  const int64_t r = own_row(), n = a.cols;
  if (r >= a.rows) return; // a whole warp, of a block without barriers
  const T* x = static_cast<const T*>(a.x) + offset(a.x_rows, r, n);
  const T* residual = a.residual == nullptr
                          ? nullptr
                          : static_cast<const T*>(a.residual) + offset(a.residual_rows, r, n);
  T* sum = a.residual == nullptr ? nullptr : static_cast<T*>(a.sum) + offset(a.sum_rows, r, n);
  A s[kKept][V], total = 0, square = 0;
  each_pack<kKept, V>(n, [&](int p, int64_t i) {
    load<V>(x + i, s[p]);
    if (residual != nullptr) {
      A more[V];
      load<V>(residual + i, more);
      for (int v = 0; v < V; ++v) s[p][v] = to_acc(from_acc<T>(s[p][v] + more[v]));
      store<V>(sum + i, s[p]);
    }
    for (int v = 0; v < V; ++v) total += s[p][v];
  });
  A mean = 0;
  if constexpr (layer_norm) mean = row_sum(total) / static_cast<A>(n);
  each_pack<kKept, V>(n, [&](int p, int64_t) {
    for (int v = 0; v < V; ++v) {
      if constexpr (layer_norm) s[p][v] -= mean;
      square = fma(s[p][v], s[p][v], square);
    }
  });
  const A rstd = 1 / sqrt(row_sum(square) / static_cast<A>(n) + static_cast<A>(a.eps));
  T* y = static_cast<T*>(a.y) + offset(a.y_rows, r, n);
  each_pack<kKept, V>(n, [&](int p, int64_t i) {
    A w[V], b[V];
    load_weights<W, V>(a, i, w);
    load_vector<W, V, A>(a.bias, a.weight_dtype, i, 0, b);
    for (int v = 0; v < V; ++v) w[v] = fma(w[v], s[p][v] * rstd, b[v]);
    store<V>(y + i, w);
  });
  if (threadIdx.x == 0) {
    if (layer_norm && a.mean != nullptr) static_cast<A*>(a.mean)[r] = mean;
    if (a.rstd != nullptr) static_cast<A*>(a.rstd)[r] = rstd;
  }
}

/// Rows of any size, one block each: read again for each sum.
template <class T> __global__ __launch_bounds__(1024) void forward_long(NormForward a) {
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

/// Rows of at most kKept packs a thread: x and dy are read once.
template <class T, class W, int V, bool layer_norm>
__global__ __launch_bounds__(1024) void backward_input(NormBackward a) {
  using A = acc_t<T>;
  const int64_t r = own_row(), n = a.cols;
  if (r >= a.rows) return; // a whole warp, of a block without barriers
  const T* dy = static_cast<const T*>(a.dy) + offset(a.dy_rows, r, n);
  const T* x = static_cast<const T*>(a.x) + offset(a.x_rows, r, n);
  const A mean = layer_norm ? static_cast<const A*>(a.mean)[r] : A{0};
  const A rstd = static_cast<const A*>(a.rstd)[r];
  A g[kKept][V], xhat[kKept][V], g_sum = 0, g_xhat_sum = 0;
  each_pack<kKept, V>(n, [&](int p, int64_t i) {
    A w[V];
    load<V>(dy + i, g[p]);
    load<V>(x + i, xhat[p]);
    load_weights<W, V>(a, i, w);
    for (int v = 0; v < V; ++v) {
      g[p][v] *= w[v];
      xhat[p][v] = (xhat[p][v] - mean) * rstd;
      g_sum += g[p][v];
      g_xhat_sum += g[p][v] * xhat[p][v];
    }
  });
  A g_mean = 0;
  if constexpr (layer_norm) g_mean = row_sum(g_sum) / static_cast<A>(n);
  const A g_xhat_mean = row_sum(g_xhat_sum) / static_cast<A>(n);
  const T* dsum =
      a.dsum == nullptr ? nullptr : static_cast<const T*>(a.dsum) + offset(a.dsum_rows, r, n);
  T* dx = static_cast<T*>(a.dx) + offset(a.dx_rows, r, n);
  each_pack<kKept, V>(n, [&](int p, int64_t i) {
    A d[V] = {};
    if (dsum != nullptr) load<V>(dsum + i, d);
    for (int v = 0; v < V; ++v) d[v] += rstd * (g[p][v] - g_mean - xhat[p][v] * g_xhat_mean);
    store<V>(dx + i, d);
  });
}

/// Rows of any size, one block each.
template <class T> __global__ __launch_bounds__(1024) void backward_input_long(NormBackward a) {
  using A = acc_t<T>;
  const int64_t r = blockIdx.x, n = a.cols;
  const bool layer_norm = a.kind == NormKind::kLayerNorm;
  const T* dy = static_cast<const T*>(a.dy) + offset(a.dy_rows, r, n);
  const T* x = static_cast<const T*>(a.x) + offset(a.x_rows, r, n);
  const T* dsum =
      a.dsum == nullptr ? nullptr : static_cast<const T*>(a.dsum) + offset(a.dsum_rows, r, n);
  T* dx = static_cast<T*>(a.dx) + offset(a.dx_rows, r, n);
  const A mean = layer_norm ? static_cast<const A*>(a.mean)[r] : A{0};
  const A rstd = static_cast<const A*>(a.rstd)[r];
  A g_sum = 0, g_xhat_sum = 0;
  for (int64_t i = threadIdx.x; i < n; i += blockDim.x) {
    const A g = weight_at<A>(a, i) * to_acc(dy[i]);
    g_sum += g;
    g_xhat_sum += g * ((to_acc(x[i]) - mean) * rstd);
  }
  const A g_mean = layer_norm ? block_sum(g_sum) / static_cast<A>(n) : A{0};
  const A g_xhat_mean = block_sum(g_xhat_sum) / static_cast<A>(n);
  for (int64_t i = threadIdx.x; i < n; i += blockDim.x) {
    const A xhat = (to_acc(x[i]) - mean) * rstd;
    const A d = rstd * (weight_at<A>(a, i) * to_acc(dy[i]) - g_mean - xhat * g_xhat_mean);
    dx[i] = from_acc<T>(dsum != nullptr ? d + to_acc(dsum[i]) : d);
  }
}

constexpr unsigned kWeightThreads = 256;

/// Sums over the block of `other` and, with `both`, of `one`, with one barrier: calls take turns
/// with two `warps`, so nobody still reads what a call writes.
template <bool both, class A> __device__ void sum_in_turn(A& one, A& other, A (&warps)[2][32]) {
  if constexpr (both) one = warp_sum(one);
  other = warp_sum(other);
  if (threadIdx.x % 32 == 0) {
    if constexpr (both) warps[0][threadIdx.x / 32] = one;
    warps[1][threadIdx.x / 32] = other;
  }
  __syncthreads();
  one = other = 0;
  for (unsigned w = 0; w < blockDim.x / 32; ++w) {
    if constexpr (both) one += warps[0][w];
    other += warps[1][w];
  }
}

/// V elements of x and dy for each of a thread's K packs, as they lie in memory.
template <class T, int V, int K> struct RawRow { T x[K][V], dy[K][V]; };

/// dx and the first of two stages of the weights' gradients in one pass: block k has chunk k of the
/// rows, one after the other, and the next row is read while one is summed. A thread sums its
/// columns over the rows. partial [chunks][dweight | dbias][cols]
template <class T, class W, int V, int K, bool layer_norm>
__global__ __launch_bounds__(kWeightThreads) void backward_rows(NormBackward a, int64_t chunk_rows,
                                                                acc_t<T>* partial) {
  using A = acc_t<T>;
  const int64_t n = a.cols, begin = blockIdx.x * chunk_rows;
  const int64_t end = begin + chunk_rows < a.rows ? begin + chunk_rows : a.rows;
  __shared__ A warps[2][2][32];
  A weight[K][V] = {}, bias[layer_norm ? K : 1][V] = {};
  RawRow<T, V, K> next;
  const auto read = [&](int64_t r) {
    const T* dy = static_cast<const T*>(a.dy) + offset(a.dy_rows, r, n);
    const T* x = static_cast<const T*>(a.x) + offset(a.x_rows, r, n);
    each_pack<K, V>(n, [&](int p, int64_t i) {
      load_raw<V>(x + i, next.x[p]);
      load_raw<V>(dy + i, next.dy[p]);
    });
  };
  read(begin);
  for (int64_t r = begin; r < end; ++r) {
    const RawRow<T, V, K> row = next;
    const A mean = layer_norm ? static_cast<const A*>(a.mean)[r] : A{0};
    const A rstd = static_cast<const A*>(a.rstd)[r];
    T* dx = static_cast<T*>(a.dx) + offset(a.dx_rows, r, n);
    const T* dsum =
        a.dsum == nullptr ? nullptr : static_cast<const T*>(a.dsum) + offset(a.dsum_rows, r, n);
    if (r + 1 < end) read(r + 1);
    const auto xhat = [&](int p, int v) { return (to_acc(row.x[p][v]) - mean) * rstd; };
    A g_sum = 0, g_xhat_sum = 0;
    each_pack<K, V>(n, [&](int p, int64_t i) {
      A w[V];
      load_weights<W, V>(a, i, w);
      for (int v = 0; v < V; ++v) {
        const A dy = to_acc(row.dy[p][v]), hat = xhat(p, v);
        weight[p][v] = fma(dy, hat, weight[p][v]);
        g_xhat_sum = fma(dy * w[v], hat, g_xhat_sum);
        if constexpr (layer_norm) {
          bias[p][v] += dy;
          g_sum = fma(dy, w[v], g_sum);
        }
      }
    });
    sum_in_turn<layer_norm>(g_sum, g_xhat_sum, warps[r % 2]);
    const A g_mean = g_sum / static_cast<A>(n), g_xhat_mean = g_xhat_sum / static_cast<A>(n);
    each_pack<K, V>(n, [&](int p, int64_t i) {
      A w[V], d[V] = {};
      load_weights<W, V>(a, i, w);
      if (dsum != nullptr) load<V>(dsum + i, d);
      for (int v = 0; v < V; ++v) {
        const A g = to_acc(row.dy[p][v]) * w[v] - g_mean;
        d[v] = fma(rstd, fma(-xhat(p, v), g_xhat_mean, g), d[v]);
      }
      store<V>(dx + i, d);
    });
  }
  A* mine = partial + blockIdx.x * 2 * n;
  each_pack<K, V>(n, [&](int p, int64_t i) {
    for (int v = 0; v < V; ++v) {
      mine[i + v] = weight[p][v];
      if constexpr (layer_norm) mine[n + i + v] = bias[p][v];
    }
  });
}

/// The first of two stages: block (c, k) sums chunk k of the rows for blockDim.x packs of columns.
/// Thread (x, y) takes every blockDim.y-th row; then the first row of threads adds up in order.
/// partial [chunks][dweight | dbias][cols]
template <class T, int V>
__global__ void partial_weight(NormBackward a, int64_t chunk_rows, acc_t<T>* partial) {
  using A = acc_t<T>;
  __shared__ A sums[2][kWeightThreads * V];
  const bool layer_norm = a.kind == NormKind::kLayerNorm;
  const int64_t n = a.cols, i = (blockIdx.x * int64_t{blockDim.x} + threadIdx.x) * V;
  const int64_t begin = blockIdx.y * chunk_rows;
  const int64_t end = begin + chunk_rows < a.rows ? begin + chunk_rows : a.rows;
  A weight[V] = {}, bias[V] = {};
  if (i < n)
    for (int64_t r = begin + threadIdx.y; r < end; r += blockDim.y) {
      A dy[V], x[V];
      load<V>(static_cast<const T*>(a.dy) + offset(a.dy_rows, r, n) + i, dy);
      load<V>(static_cast<const T*>(a.x) + offset(a.x_rows, r, n) + i, x);
      const A mean = layer_norm ? static_cast<const A*>(a.mean)[r] : A{0};
      const A rstd = static_cast<const A*>(a.rstd)[r];
      for (int v = 0; v < V; ++v) {
        weight[v] += dy[v] * ((x[v] - mean) * rstd);
        bias[v] += dy[v];
      }
    }
  const unsigned own = threadIdx.y * blockDim.x + threadIdx.x;
  for (int v = 0; v < V; ++v) {
    sums[0][own * V + v] = weight[v];
    sums[1][own * V + v] = bias[v];
  }
  __syncthreads();
  if (threadIdx.y != 0 || i >= n) return;
  for (int which = 0; which < 2; ++which)
    for (int v = 0; v < V; ++v) {
      A sum = 0;
      for (unsigned y = 0; y < blockDim.y; ++y)
        sum += sums[which][(y * blockDim.x + threadIdx.x) * V + v];
      partial[(blockIdx.y * 2 + which) * n + i + v] = sum;
    }
}

/// The second stage: 32 columns a block; thread (x, y) adds the chunks y, y + 32, ... of column x,
/// then the first row of threads adds up in order.
template <class A>
__global__ __launch_bounds__(1024) void add_partial(NormBackward a, int64_t chunks,
                                                    const A* partial) {
  __shared__ A sums[2][32][33];
  const int64_t n = a.cols, i = blockIdx.x * int64_t{32} + threadIdx.x;
  for (int which = 0; which < (a.dbias == nullptr ? 1 : 2); ++which) {
    A sum = 0;
    if (i < n)
      for (int64_t k = threadIdx.y; k < chunks; k += 32) sum += partial[(k * 2 + which) * n + i];
    sums[which][threadIdx.y][threadIdx.x] = sum;
  }
  __syncthreads();
  if (threadIdx.y != 0 || i >= n) return;
  A weight = 0, bias = 0;
  for (int y = 0; y < 32; ++y) {
    weight += sums[0][y][threadIdx.x];
    if (a.dbias != nullptr) bias += sums[1][y][threadIdx.x];
  }
  if (a.dweight != nullptr) static_cast<A*>(a.dweight)[i] += weight;
  if (a.dbias != nullptr) static_cast<A*>(a.dbias)[i] += bias;
}

/// Calls launch_with(W*) with the type of weights and bias for load_vector().
template <class T, class F>
void with_weights(DType dtype, const void* weight, const void* bias, int64_t cols,
                  F&& launch_with) {
  if (dtype == dtype_of<T>() && takes_packs<T>({weight, bias}, {cols}))
    return launch_with(static_cast<T*>(nullptr));
  if (dtype == dtype_of<acc_t<T>>() && takes_packs<acc_t<T>>({weight, bias}, {cols}))
    return launch_with(static_cast<acc_t<T>*>(nullptr));
  launch_with(static_cast<void*>(nullptr));
}

/// How rows are dealt to threads: `units` are what a thread reads at once.
struct RowGrid {
  unsigned blocks;
  dim3 threads;

  RowGrid(int64_t rows, int64_t units) : blocks(static_cast<unsigned>(rows)), threads(32) {
    if (units <= kKept * 32) { // a warp a row, 8 rows a block
      threads = dim3(32, 8);
      blocks = static_cast<unsigned>((rows + 7) / 8);
    } else {
      const int64_t warps = (units + kKept * 32 - 1) / (kKept * 32);
      threads = dim3(static_cast<unsigned>(32 * std::clamp<int64_t>(warps, 1, 32)));
    }
  }
  /// Whether kKept units of a thread are enough.
  bool holds(int64_t units) const { return units <= int64_t{kKept} * threads.x; }
};

template <class T> void launch_forward(const NormForward& a, const Context& context) {
  const bool packs =
      takes_packs<T>({a.x, a.residual, a.sum, a.y},
                     {a.cols, a.x_rows.stride, a.x_rows.group_stride, a.residual_rows.stride,
                      a.residual_rows.group_stride, a.sum_rows.stride, a.sum_rows.group_stride,
                      a.y_rows.stride, a.y_rows.group_stride});
  const int64_t units = packs ? a.cols / kPack<T> : a.cols;
  const RowGrid grid(a.rows, units);
  const bool layer_norm = a.kind == NormKind::kLayerNorm;
  const auto start = [&](auto* kernel) {
    launch("norm_forward", kernel, grid.blocks, grid.threads, context, a);
  };
  if (!grid.holds(units))
    return launch("norm_forward", forward_long<T>, static_cast<unsigned>(a.rows), 1024, context, a);
  if (!packs) return start(layer_norm ? forward<T, void, 1, true> : forward<T, void, 1, false>);
  with_weights<T>(a.weight_dtype, a.weight, a.bias, a.cols, [&]<class W>(W*) {
    start(layer_norm ? forward<T, W, kPack<T>, true> : forward<T, W, kPack<T>, false>);
  });
}

template <class T, int V>
void launch_weight(const NormBackward& a, const Context& context, acc_t<T>* partial) {
  const int64_t units = a.cols / V;
  unsigned x = 1; // threads along a row
  while (x < units && x < 32) x *= 2;
  const int64_t rows = norm_cuda_chunk_rows(a.rows), chunks = (a.rows + rows - 1) / rows;
  const dim3 blocks(static_cast<unsigned>((units + x - 1) / x), static_cast<unsigned>(chunks));
  launch("norm_backward", partial_weight<T, V>, blocks, dim3(x, kWeightThreads / x), context, a,
         rows, partial);
  launch("norm_backward", add_partial<acc_t<T>>, static_cast<unsigned>((a.cols + 31) / 32),
         dim3(32, 32), context, a, chunks, partial);
}

template <class T, class W, bool layer_norm>
void launch_rows(const NormBackward& a, const Context& context) {
  constexpr int V = kPack<T>;
  auto* partial = reinterpret_cast<acc_t<T>*>(context.workspace.data());
  const int64_t rows = norm_cuda_chunk_rows(a.rows), chunks = (a.rows + rows - 1) / rows;
  const int64_t units = a.cols / V, packs = units <= kWeightThreads       ? 1
                                            : units <= 2 * kWeightThreads ? 2
                                                                          : 4;
  const auto threads = static_cast<unsigned>((units + packs * 32 - 1) / (packs * 32) * 32);
  launch("norm_backward",
         packs == 1   ? backward_rows<T, W, V, 1, layer_norm>
         : packs == 2 ? backward_rows<T, W, V, 2, layer_norm>
                      : backward_rows<T, W, V, 4, layer_norm>,
         static_cast<unsigned>(chunks), threads, context, a, rows, partial);
  launch("norm_backward", add_partial<acc_t<T>>, static_cast<unsigned>((a.cols + 31) / 32),
         dim3(32, 32), context, a, chunks, partial);
}

/// Whether one pass makes dx and the weights' gradients: of rows that occupy a block.
template <class T> bool takes_rows(const NormBackward& a) {
  const int64_t units = a.cols / kPack<T>;
  return a.dx != nullptr && (a.dweight != nullptr || a.dbias != nullptr) &&
         (a.dbias == nullptr || a.kind == NormKind::kLayerNorm) && units > kKept * 32 &&
         units <= 4 * int64_t{kWeightThreads};
}

template <class T> void launch_backward(const NormBackward& a, const Context& context) {
  const bool packs = takes_packs<T>(
      {a.x, a.dy, a.dsum, a.dx},
      {a.cols, a.x_rows.stride, a.x_rows.group_stride, a.dy_rows.stride, a.dy_rows.group_stride,
       a.dsum_rows.stride, a.dsum_rows.group_stride, a.dx_rows.stride, a.dx_rows.group_stride});
  const bool layer_norm = a.kind == NormKind::kLayerNorm;
  if (packs && takes_rows<T>(a))
    return with_weights<T>(a.weight_dtype, a.weight, nullptr, a.cols, [&]<class W>(W*) {
      layer_norm ? launch_rows<T, W, true>(a, context) : launch_rows<T, W, false>(a, context);
    });
  // dx may overwrite x or dy, so it comes last.
  if (a.dweight != nullptr || a.dbias != nullptr) {
    auto* partial = reinterpret_cast<acc_t<T>*>(context.workspace.data());
    if (packs)
      launch_weight<T, kPack<T>>(a, context, partial);
    else
      launch_weight<T, 1>(a, context, partial);
  }
  if (a.dx == nullptr) return;
  const int64_t units = packs ? a.cols / kPack<T> : a.cols;
  const RowGrid grid(a.rows, units);
  const auto start = [&](auto* kernel) {
    launch("norm_backward", kernel, grid.blocks, grid.threads, context, a);
  };
  if (!grid.holds(units))
    launch("norm_backward", backward_input_long<T>, static_cast<unsigned>(a.rows), 1024, context,
           a);
  else if (!packs)
    start(layer_norm ? backward_input<T, void, 1, true> : backward_input<T, void, 1, false>);
  else
    with_weights<T>(a.weight_dtype, a.weight, nullptr, a.cols, [&]<class W>(W*) {
      start(layer_norm ? backward_input<T, W, kPack<T>, true>
                       : backward_input<T, W, kPack<T>, false>);
    });
}

} // namespace

void NormCuda::run(const NormForward& a, const Context& context) {
  visit_dtype(a.dtype, [&](auto t) { launch_forward<decltype(t)>(a, context); });
}

void NormCuda::run(const NormBackward& a, const Context& context) {
  visit_dtype(a.dtype, [&](auto t) { launch_backward<decltype(t)>(a, context); });
}

} // namespace pentatron::kernels
