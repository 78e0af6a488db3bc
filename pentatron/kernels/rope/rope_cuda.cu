#include <algorithm>

#include "pentatron/kernels/common/device.cuh"
#include "pentatron/kernels/rope/rope_entries.h"

namespace pentatron::kernels {

namespace {

using namespace cuda;

/// Cosine and sine of V features of a token, sine with the sign of the direction. Of interleaved
/// pairs both features have the pair's.
template <int V, class A> struct Angles { A cos[V], sin[V]; };

template <int V, class A>
__device__ Angles<V, A> angles_of(const Rope& a, int64_t token, int feature) {
  Angles<V, A> angles;
  const int64_t row = int64_t{a.positions[token]} * (a.rotary_dim / 2);
  if constexpr (V > 1) {
    if (!a.interleaved) {
      load_part(static_cast<const A*>(a.cos) + row + feature, angles.cos);
      load_part(static_cast<const A*>(a.sin) + row + feature, angles.sin);
      for (int v = 0; v < V; ++v) angles.sin[v] = a.transpose ? -angles.sin[v] : angles.sin[v];
      return angles;
    }
  }
  for (int v = 0; v < V; ++v) {
    const int64_t at = row + (a.interleaved ? (feature + v) / 2 : feature + v);
    angles.cos[v] = static_cast<const A*>(a.cos)[at];
    const A sine = static_cast<const A*>(a.sin)[at];
    angles.sin[v] = a.transpose ? -sine : sine;
  }
  return angles;
}

/// Pairs that are half the rotary features apart.
template <int V, class T>
__device__ void rotate_halves(const Rope& a, const Angles<V, acc_t<T>>& angles, const T* x, T* y) {
  const auto half = static_cast<int>(a.rotary_dim / 2);
  acc_t<T> first[V], second[V], one[V], two[V];
  load<V>(x, first);
  load<V>(x + half, second);
  for (int v = 0; v < V; ++v) {
    one[v] = first[v] * angles.cos[v] - second[v] * angles.sin[v];
    two[v] = second[v] * angles.cos[v] + first[v] * angles.sin[v];
  }
  store<V>(y, one);
  store<V>(y + half, two);
}

/// Neighbouring pairs; V is even.
template <int V, class T>
__device__ void rotate_neighbours(const Angles<V, acc_t<T>>& angles, const T* x, T* y) {
  acc_t<T> in[V], out[V];
  load<V>(x, in);
  for (int v = 0; v + 1 < V; v += 2) {
    out[v] = in[v] * angles.cos[v] - in[v + 1] * angles.sin[v];
    out[v + 1] = in[v + 1] * angles.cos[v] + in[v] * angles.sin[v];
  }
  store<V>(y, out);
}

/// One pair of neighbours, for V = 1.
template <class T>
__device__ void rotate_pair(const Angles<1, acc_t<T>>& angles, const T* x, T* y) {
  const acc_t<T> first = to_acc(x[0]), second = to_acc(x[1]);
  y[0] = from_acc<T>(first * angles.cos[0] - second * angles.sin[0]);
  y[1] = from_acc<T>(second * angles.cos[0] + first * angles.sin[0]);
}

/// Thread (x, y) of a token's block: angles of its features are read once for the heads y, y +
/// blockDim.y, ... No index is divided.
template <class T, int V> __global__ void rotate(Rope a) {
  const auto half = static_cast<int>(a.rotary_dim / 2), rotary = static_cast<int>(a.rotary_dim),
             size = static_cast<int>(a.head_size), heads = static_cast<int>(a.heads);
  const int step = a.interleaved && V == 1 ? 2 : V;
  const int width = a.interleaved ? rotary : half;
  for (int64_t t = blockIdx.x; t < a.tokens; t += gridDim.x) {
    const T* x = static_cast<const T*>(a.x) + t * a.x_token_stride;
    T* y = static_cast<T*>(a.y) + t * a.y_token_stride;
    for (int i = static_cast<int>(threadIdx.x) * step; i < width;
         i += static_cast<int>(blockDim.x) * step) {
      const auto angles = angles_of<V, acc_t<T>>(a, t, i);
      for (int h = static_cast<int>(threadIdx.y); h < heads; h += static_cast<int>(blockDim.y)) {
        const T* from = x + h * a.x_head_stride + i;
        T* to = y + h * a.y_head_stride + i;
        if (!a.interleaved)
          rotate_halves<V>(a, angles, from, to);
        else if constexpr (V == 1)
          rotate_pair(angles, from, to);
        else
          rotate_neighbours<V>(angles, from, to);
      }
    }
    if (x == y && a.x_head_stride == a.y_head_stride) continue; // what is not rotated is there
    for (int i = rotary + static_cast<int>(threadIdx.x); i < size;
         i += static_cast<int>(blockDim.x))
      for (int h = static_cast<int>(threadIdx.y); h < heads; h += static_cast<int>(blockDim.y))
        y[h * a.y_head_stride + i] = x[h * a.x_head_stride + i];
  }
}

} // namespace

void RopeCuda::run(const Rope& a, const Context& context) {
  const auto blocks = static_cast<unsigned>(std::min<int64_t>(a.tokens, 65535));
  visit_dtype(a.dtype, [&](auto t) {
    using T = decltype(t);
    const bool packs = takes_packs<T>(
        {a.x, a.y}, {a.x_token_stride, a.x_head_stride, a.y_token_stride, a.y_head_stride,
                     a.interleaved ? a.rotary_dim : a.rotary_dim / 2});
    const int64_t units = a.rotary_dim / 2 / (packs ? kPack<T> : 1);
    unsigned x = 1; // threads along a head; the rest are for heads
    while (x < units && x < 64) x *= 2;
    const dim3 threads(x, static_cast<unsigned>(std::clamp<int64_t>(a.heads, 1, 256 / x)));
    if (packs)
      launch("rope", rotate<T, kPack<T>>, blocks, threads, context, a);
    else
      launch("rope", rotate<T, 1>, blocks, threads, context, a);
  });
}

} // namespace pentatron::kernels
