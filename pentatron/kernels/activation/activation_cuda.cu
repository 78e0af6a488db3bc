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

/// The bias of V columns from `at` on.
template <int V, class A, class Args>
__device__ void load_bias(const Args& a, int64_t at, A (&b)[V]) {
  for (int v = 0; v < V; ++v) b[v] = load_any<A>(a.bias, a.bias_dtype, at + v, 0);
}

/// V columns from `at` on of row r, bias added.
template <int V, class T, class Args>
__device__ void load_input(const Args& a, int64_t r, int64_t at, const acc_t<T> (&bias)[V],
                           acc_t<T> (&in)[V]) {
  load<V>(static_cast<const T*>(a.x) + r * a.x_stride + at, in);
  for (int v = 0; v < V; ++v) in[v] += bias[v];
}

/// The first of a thread's V columns; its rows are blockIdx.y, blockIdx.y + gridDim.y, ...
template <int V> __device__ int64_t first_column() {
  return (blockIdx.x * int64_t{blockDim.x} + threadIdx.x) * V;
}

/// Which function: known when the kernel is compiled for the usual ones, so that nothing is decided
/// for each element. SwiGLU has no limit and no offset.
enum class Known : uint8_t { kNothing, kSwiGlu, kGelu };
template <class Args> Known known(const Args& a) {
  if (a.gated && a.kind == Activation::kSilu && std::isinf(a.gate.limit) && a.gate.up_offset == 0)
    return Known::kSwiGlu;
  return !a.gated && a.kind == Activation::kGeluTanh ? Known::kGelu : Known::kNothing;
}
template <Known known, class Args> __device__ void fix(Args& a) {
  if constexpr (known != Known::kNothing) {
    a.gated = known == Known::kSwiGlu;
    a.kind = known == Known::kSwiGlu ? Activation::kSilu : Activation::kGeluTanh;
  }
}

/// Results that are rounded to 16 bits anyway.
template <class T> constexpr bool kNarrow = sizeof(T) == 2;

__device__ float fast_sigmoid(float x) {
  return fast_reciprocal(1 + fast_exp(-x));
}

/// The gate's or only input and the up part -> value and derivatives. For 16 bits the usual
/// functions have one exponential, which leaves the time to the memory.
template <class T, Known known, class Args>
__device__ Gated<acc_t<T>> apply(const Args& a, acc_t<T> in, acc_t<T> up) {
  using A = acc_t<T>;
  if constexpr (kNarrow<T> && known == Known::kSwiGlu) {
    const float s = fast_sigmoid(in), silu = in * s;
    return {silu * up, s * (1 + in * (1 - s)) * up, silu};
  } else if constexpr (kNarrow<T> && known == Known::kGelu) {
    constexpr float k = 1.59576912160573071176f, c = 0.044715f; // k = 2 sqrt(2 / pi)
    const float square = in * in, s = fast_sigmoid(k * in * (1 + c * square));
    return {in * s, s + in * s * (1 - s) * (k * (1 + 3 * c * square)), 0};
  } else {
    if (a.gated) return evaluate_gated<A>(a.kind, a.gate, in, up);
    const Derived<A> one = evaluate<A>(a.kind, in);
    return {one.value, one.slope, A{0}};
  }
}

/// A thread's rows at a time, so that their loads are under way at once.
constexpr int kRows = 2;

/// f(k, r) for the rows that a thread takes at a time, `first` and those gridDim.y further.
template <class F> __device__ void each_row(int64_t first, int64_t rows, F&& f) {
#pragma unroll
  for (int k = 0; k < kRows; ++k) {
    const int64_t r = first + k * int64_t{gridDim.y};
    if (r < rows) f(k, r);
  }
}

template <class T, int V, Known known> __global__ void forward(ActivationForward a) {
  using A = acc_t<T>;
  fix<known>(a);
  const int64_t f = a.cols, i = first_column<V>();
  if (i >= f) return;
  A bias[V], bias_up[V] = {}, in[kRows][V], up[kRows][V] = {}, out[V];
  load_bias(a, i, bias);
  if (a.gated) load_bias(a, f + i, bias_up);
  for (int64_t first = blockIdx.y; first < a.rows; first += int64_t{kRows} * gridDim.y) {
    each_row(first, a.rows, [&](int k, int64_t r) {
      load_input<V, T>(a, r, i, bias, in[k]);
      if (a.gated) load_input<V, T>(a, r, f + i, bias_up, up[k]);
    });
    each_row(first, a.rows, [&](int k, int64_t r) {
      const A scale = row_scale<A>(a, r);
      for (int v = 0; v < V; ++v) out[v] = scale * apply<T, known>(a, in[k][v], up[k][v]).value;
      store<V>(static_cast<T*>(a.y) + r * a.y_stride + i, out);
    });
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

template <class T, int V, Known known> __global__ void backward(ActivationBackward a) {
  using A = acc_t<T>;
  fix<known>(a);
  const int64_t f = a.cols, i = first_column<V>();
  if (i >= f) return;
  A bias[V], bias_up[V] = {}, in[kRows][V], up[kRows][V] = {}, dy[kRows][V], d[V], d_up[V];
  load_bias(a, i, bias);
  if (a.gated) load_bias(a, f + i, bias_up);
  for (int64_t first = blockIdx.y; first < a.rows; first += int64_t{kRows} * gridDim.y) {
    each_row(first, a.rows, [&](int k, int64_t r) {
      load_input<V, T>(a, r, i, bias, in[k]);
      if (a.gated) load_input<V, T>(a, r, f + i, bias_up, up[k]);
      load<V>(static_cast<const T*>(a.dy) + r * a.dy_stride + i, dy[k]);
    });
    each_row(first, a.rows, [&](int k, int64_t r) {
      const A scale = row_scale<A>(a, r);
      for (int v = 0; v < V; ++v) {
        const Gated<A> act = apply<T, known>(a, in[k][v], up[k][v]);
        d[v] = dy[k][v] * scale * act.d_gate;
        d_up[v] = dy[k][v] * scale * act.d_up;
      }
      T* dx = static_cast<T*>(a.dx) + r * a.dx_stride;
      store<V>(dx + i, d);
      if (a.gated) store<V>(dx + f + i, d_up);
    });
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
template <class T> __global__ __launch_bounds__(1024) void backward_bias(ActivationBackward a) {
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

/// Blocks of 256 threads that each have `pack` columns; rows are dealt out so that there are
/// enough.
dim3 blocks_for(int64_t rows, int64_t cols, int64_t pack) {
#ifdef PENTATRON_EMULATED
  constexpr int64_t kWanted = 4; // so that threads have several rows
#else
  constexpr int64_t kWanted = 4096; // several waves on the largest GPUs
#endif
  const int64_t across = (cols / pack + 255) / 256;
  const int64_t down = std::clamp<int64_t>(kWanted / across, 1, std::min<int64_t>(rows, 65535));
  return dim3(static_cast<unsigned>(across), static_cast<unsigned>(down));
}

template <class T, int V, Known known>
void launch_forward(const ActivationForward& a, const Context& context) {
  launch("activation_forward", forward<T, V, known>, blocks_for(a.rows, a.cols, V), 256, context,
         a);
}
template <class T, int V, Known known>
void launch_backward(const ActivationBackward& a, const Context& context) {
  launch("activation_backward", backward<T, V, known>, blocks_for(a.rows, a.cols, V), 256, context,
         a);
}

} // namespace

void ActivationCuda::run(const ActivationForward& a, const Context& context) {
  visit_dtype(a.dtype, [&](auto t) {
    using T = decltype(t);
    if (!takes_packs<T>({a.x, a.y}, {a.cols, a.x_stride, a.y_stride}))
      return launch_forward<T, 1, Known::kNothing>(a, context);
    switch (known(a)) {
    case Known::kNothing:
      return launch_forward<T, kPack<T>, Known::kNothing>(a, context);
    case Known::kSwiGlu:
      return launch_forward<T, kPack<T>, Known::kSwiGlu>(a, context);
    case Known::kGelu:
      return launch_forward<T, kPack<T>, Known::kGelu>(a, context);
    }
  });
}

void ActivationCuda::run(const ActivationBackward& a, const Context& context) {
  const auto column_blocks = static_cast<unsigned>((a.cols + 31) / 32);
  visit_dtype(a.dtype, [&](auto t) {
    using T = decltype(t);
    // dx may overwrite x or dy, so it comes last.
    if (a.drow_scale != nullptr)
      launch("activation_backward", backward_scale<T>,
             static_cast<unsigned>(std::min<int64_t>(a.rows, 65535)), 256, context, a);
    if (a.dbias != nullptr)
      launch("activation_backward", backward_bias<T>, column_blocks, dim3(32, 32), context, a);
    if (!takes_packs<T>({a.x, a.dy, a.dx}, {a.cols, a.x_stride, a.dy_stride, a.dx_stride}))
      return launch_backward<T, 1, Known::kNothing>(a, context);
    switch (known(a)) {
    case Known::kNothing:
      return launch_backward<T, kPack<T>, Known::kNothing>(a, context);
    case Known::kSwiGlu:
      return launch_backward<T, kPack<T>, Known::kSwiGlu>(a, context);
    case Known::kGelu:
      return launch_backward<T, kPack<T>, Known::kGelu>(a, context);
    }
  });
}

} // namespace pentatron::kernels
