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

/// V features of a pair of halves, or neighbouring pairs, as they lie in memory.
template <int V, class T> struct Pairs { T first[V], second[V]; };

template <int V, class T> __device__ void read(const T* p, T (&out)[V]) {
  if constexpr (V == 1)
    out[0] = *p;
  else
    load_raw<V>(p, out);
}

/// Where the second of a pair lies: of halves; of neighbours that are read one by one; neighbours
/// that are read together need none.
template <int V> __device__ int second_of(const Rope& a) {
  return !a.interleaved ? static_cast<int>(a.rotary_dim / 2) : V == 1 ? 1 : 0;
}

template <int V, class T>
__device__ void rotate_pairs(const Rope& a, const Angles<V, acc_t<T>>& angles,
                             const Pairs<V, T>& in, T* y) {
  using A = acc_t<T>;
  A one[V], two[V];
  if (V > 1 && a.interleaved) {
    for (int v = 0; v + 1 < V; v += 2) {
      const A first = to_acc(in.first[v]), second = to_acc(in.first[v + 1]);
      one[v] = first * angles.cos[v] - second * angles.sin[v];
      one[v + 1] = second * angles.cos[v + 1] + first * angles.sin[v + 1];
    }
    return store<V>(y, one);
  }
  for (int v = 0; v < V; ++v) {
    const A first = to_acc(in.first[v]), second = to_acc(in.second[v]);
    one[v] = first * angles.cos[v] - second * angles.sin[v];
    two[v] = second * angles.cos[v] + first * angles.sin[v];
  }
  store<V>(y, one);
  store<V>(y + second_of<V>(a), two);
}

constexpr unsigned kThreads = 256; ///< of a block, at most

/// Heads that a thread takes at a time, so that their loads are under way at once.
constexpr int kHeads = 4;

/// Thread (x, y, z) of a block: angles of its features are read once for the heads y, y +
/// blockDim.y, ... of token z. No index is divided.
template <class T, int V> __global__ void rotate(Rope a) {
  const auto half = static_cast<int>(a.rotary_dim / 2), rotary = static_cast<int>(a.rotary_dim),
             size = static_cast<int>(a.head_size), heads = static_cast<int>(a.heads),
             apart = static_cast<int>(blockDim.y);
  const int step = a.interleaved && V == 1 ? 2 : V;
  const int width = a.interleaved ? rotary : half;
  for (int64_t t = blockIdx.x * int64_t{blockDim.z} + threadIdx.z; t < a.tokens;
       t += int64_t{gridDim.x} * blockDim.z) {
    const T* x = static_cast<const T*>(a.x) + t * a.x_token_stride;
    T* y = static_cast<T*>(a.y) + t * a.y_token_stride;
    for (int i = static_cast<int>(threadIdx.x) * step; i < width;
         i += static_cast<int>(blockDim.x) * step) {
      const auto angles = angles_of<V, acc_t<T>>(a, t, i);
      for (int first = static_cast<int>(threadIdx.y); first < heads; first += kHeads * apart) {
        Pairs<V, T> in[kHeads];
#pragma unroll
        for (int k = 0; k < kHeads; ++k) {
          if (first + k * apart >= heads) break;
          const T* from = x + (first + k * apart) * a.x_head_stride + i;
          read<V>(from, in[k].first);
          if (V == 1 || !a.interleaved) read<V>(from + second_of<V>(a), in[k].second);
        }
#pragma unroll
        for (int k = 0; k < kHeads; ++k) {
          if (first + k * apart >= heads) break;
          rotate_pairs<V>(a, angles, in[k], y + (first + k * apart) * a.y_head_stride + i);
        }
      }
    }
    if (x == y && a.x_head_stride == a.y_head_stride) continue; // what is not rotated is there
    for (int i = rotary + static_cast<int>(threadIdx.x); i < size;
         i += static_cast<int>(blockDim.x))
      for (int h = static_cast<int>(threadIdx.y); h < heads; h += apart)
        y[h * a.y_head_stride + i] = x[h * a.x_head_stride + i];
  }
}

} // namespace

void RopeCuda::run(const Rope& a, const Context& context) {
  visit_dtype(a.dtype, [&](auto t) {
    using T = decltype(t);
    const bool packs = takes_packs<T>(
        {a.x, a.y}, {a.x_token_stride, a.x_head_stride, a.y_token_stride, a.y_head_stride,
                     a.interleaved ? a.rotary_dim : a.rotary_dim / 2});
    const int64_t units = a.rotary_dim / 2 / (packs ? kPack<T> : 1);
    unsigned x = 1; // threads along a head; the rest are for heads and tokens
    while (x < units && x < 64) x *= 2;
    const auto y = static_cast<unsigned>(
        std::clamp<int64_t>((a.heads + kHeads - 1) / kHeads, 1, kThreads / x));
    const auto z = std::clamp<unsigned>(kThreads / (x * y), 1, 64);
    const dim3 threads(x, y, z);
    const auto blocks = static_cast<unsigned>(std::min<int64_t>((a.tokens + z - 1) / z, 65535));
    if (packs)
      launch("rope", rotate<T, kPack<T>>, blocks, threads, context, a);
    else
      launch("rope", rotate<T, 1>, blocks, threads, context, a);
  });
}

} // namespace pentatron::kernels
