#include "pentatron/kernels/quantize/fp8_codes_entries.h"
#include "pentatron/kernels/quantize/fp8_device.cuh"

namespace pentatron::kernels {

namespace {

using namespace cuda;

/// Elements that a thread takes at a time.
constexpr int kWidth = kCodes;

template <class T, bool packs> __global__ void largest_of(RaiseAmax a) {
  const auto* const x = static_cast<const T*>(a.x);
  float largest = 0;
  const int64_t step = int64_t{gridDim.x} * blockDim.x * kWidth;
  for (int64_t i = (blockIdx.x * int64_t{blockDim.x} + threadIdx.x) * kWidth; i < a.n; i += step) {
    acc_t<T> in[kWidth] = {};
    if constexpr (packs) {
      load_row<true>(x + i, in);
    } else {
      for (int j = 0; j < kWidth && i + j < a.n; ++j) in[j] = to_acc(x[i + j]);
    }
    for (int j = 0; j < kWidth; ++j) {
      const float size = size_of(in[j]);
      if (size > largest) largest = size; // false for NaN
    }
  }
  for (int lanes = 16; lanes > 0; lanes /= 2) {
    const float other = __shfl_xor_sync(0xFFFFFFFFu, largest, lanes);
    if (other > largest) largest = other;
  }
  __shared__ float warps[32];
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = largest;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (unsigned w = 1; w < blockDim.x / 32; ++w)
    if (warps[w] > largest) largest = warps[w];
  // Bits of numbers that are not negative are ordered as the numbers.
  atomicMax(reinterpret_cast<int*>(a.amax), static_cast<int>(bits_of(largest)));
}

/// Codes where the elements are.
template <class T, bool e5m2, bool packs> __global__ void encode(Fp8Codes a) {
  const float scale = encode_scale(e5m2 ? 57344.0f : 448.0f, *a.amax);
  if (blockIdx.x == 0 && threadIdx.x == 0) *a.scale = 1 / scale;
  const auto* const x = static_cast<const T*>(a.x);
  const int64_t groups = (a.stride + kWidth - 1) / kWidth, all = a.rows * groups;
  for (int64_t g = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; g < all;
       g += int64_t{gridDim.x} * blockDim.x) {
    const int64_t row = g / groups, col = g % groups * kWidth;
    acc_t<T> in[kCodes];
    load_group<packs>(x + row * a.cols, col, a.cols, in);
    store_group<e5m2, packs>(a.codes + row * a.stride, col, a.stride, in, scale);
  }
}

/// A block: the codes of a tile, through shared memory.
template <class T, bool e5m2, bool packs> __global__ void encode_transposed(Fp8Codes a) {
  __shared__ uint32_t words_of_tile[kTileCols * kTilePitch / 4];
  auto* const tile = reinterpret_cast<uint8_t*>(words_of_tile);
  const float scale = encode_scale(e5m2 ? 57344.0f : 448.0f, *a.amax);
  if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0) *a.scale = 1 / scale;
  const auto* const x = static_cast<const T*>(a.x);
  const int64_t first_row = int64_t{blockIdx.x} * kTileRows,
                first_col = int64_t{blockIdx.y} * kTileCols;
  constexpr int V = packs ? kPack<T> : 1, kAcross = kTileCols / V;
  for (int i = static_cast<int>(threadIdx.x); i < kTileRows * kAcross;
       i += static_cast<int>(blockDim.x)) {
    const int r = i / kAcross, c = i % kAcross * V;
    const bool inside = first_row + r < a.rows && first_col + c < a.cols;
    acc_t<T> in[V] = {};
    if (inside) load<V>(x + (first_row + r) * a.cols + first_col + c, in);
    for (int v = 0; v < V; ++v)
      tile[(c + v) * kTilePitch + r] = rounded_code<e5m2>(static_cast<float>(in[v]) * scale);
  }
  __syncthreads();
  store_tile<packs>(words_of_tile, first_row, first_col, a.cols, a.stride, a.codes);
}

/// Which kernel, by types and format. Not by `if constexpr` in lambdas: see device.cuh.
template <class T, bool e5m2, bool packs>
void run_codes(const Fp8Codes& a, const Context& context) {
  if (!a.transposed) {
    const int64_t groups = a.rows * ((a.stride + kWidth - 1) / kWidth);
    return launch("fp8_codes", encode<T, e5m2, packs>, stride_blocks(groups), 256, context, a);
  }
  const int64_t down = (a.stride + kTileRows - 1) / kTileRows,
                across = (a.cols + kTileCols - 1) / kTileCols;
  launch("fp8_codes", encode_transposed<T, e5m2, packs>,
         dim3(static_cast<unsigned>(down < 1 ? 1 : down),
              static_cast<unsigned>(across < 1 ? 1 : across)),
         256, context, a);
}
template <class T, bool e5m2> void run_format(const Fp8Codes& a, const Context& context) {
  // Whole groups, without columns that are filled up.
  const bool packs = takes_packs<T>({a.x}, {a.cols}) &&
                     reinterpret_cast<uintptr_t>(a.codes) % 16 == 0 && a.stride % kWidth == 0 &&
                     (a.transposed || a.cols == a.stride);
  if (packs)
    run_codes<T, e5m2, true>(a, context);
  else
    run_codes<T, e5m2, false>(a, context);
}

} // namespace

void Fp8CodesCuda::run(const RaiseAmax& a, const Context& context) {
  const int64_t blocks = (a.n + 256 * kWidth - 1) / (256 * kWidth);
  visit_dtype(a.dtype, [&](auto t) {
    using T = decltype(t);
    const bool packs = takes_packs<T>({a.x}, {a.n}) && a.n % kWidth == 0;
    const auto kernel = packs ? largest_of<T, true> : largest_of<T, false>;
    // Few enough atomics, enough blocks for every multiprocessor.
    launch("raise_amax", kernel, static_cast<unsigned>(blocks > 2048 ? 2048 : blocks), 256, context,
           a);
  });
}

void Fp8CodesCuda::run(const Fp8Codes& a, const Context& context) {
  const bool e5m2 = a.recipe == QuantRecipe::kTensorwiseE5m2;
  visit_dtype(a.dtype, [&](auto t) {
    using T = decltype(t);
    if (e5m2)
      run_format<T, true>(a, context);
    else
      run_format<T, false>(a, context);
  });
}

} // namespace pentatron::kernels
