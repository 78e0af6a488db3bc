#include "pentatron/kernels/quantize/fp8_blocks_entries.h"
#include "pentatron/kernels/quantize/fp8_device.cuh"

namespace pentatron::kernels {

namespace {

using namespace cuda;

constexpr int kBlock = 128;
constexpr int kThreads = 256;

/// Blocks of a row, codes where the elements are. kBlock / kCodes neighbouring lanes have a block.
template <class T, bool packs> __global__ void encode_rows(Fp8Blocks a) {
  constexpr int kLanes = kBlock / kCodes;
  const auto* const x = static_cast<const T*>(a.x);
  const int64_t groups = (a.stride + kBlock - 1) / kBlock * kLanes, all = a.rows * groups;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  // All lanes of a warp go on together: they exchange what they found.
  for (int64_t first = blockIdx.x * int64_t{blockDim.x} + threadIdx.x - lane; first < all;
       first += int64_t{gridDim.x} * blockDim.x) {
    const int64_t g = first + lane, row = g / groups, col = g % groups * kCodes;
    const bool inside = g < all && col < a.stride;
    acc_t<T> in[kCodes] = {};
    if (inside) load_group<packs>(x + row * a.cols, col, a.cols, in);
    float largest = 0;
    for (int j = 0; j < kCodes; ++j) {
      const float size = size_of(in[j]);
      if (size > largest) largest = size; // false for NaN
    }
    for (int lanes = kLanes / 2; lanes > 0; lanes /= 2) {
      const float other = __shfl_xor_sync(0xFFFFFFFFu, largest, lanes);
      if (other > largest) largest = other;
    }
    if (!inside) continue;
    const float encode = block_encode_of(largest);
    if (col % kBlock == 0) a.scales[col / kBlock * a.scale_stride + row] = 1 / encode;
    store_group<false, packs>(a.codes + row * a.stride, col, a.stride, in, encode);
  }
}

/// Calls f(r, c, in) for the thread's packs of a tile of kTileRows rows and kTileCols columns from
/// (first_row, first_col) on; elements outside of x are zeros. A thread's packs lie in the same
/// columns.
template <int V, class T, class F>
__device__ void each_tile_pack(const Fp8Blocks& a, int64_t first_row, int64_t first_col, F&& f) {
  constexpr int kAcross = kTileCols / V;
  static_assert(kThreads % kAcross == 0);
  const auto* const x = static_cast<const T*>(a.x);
  const int c = static_cast<int>(threadIdx.x) % kAcross * V;
#pragma unroll 4
  for (int r = static_cast<int>(threadIdx.x) / kAcross; r < kTileRows; r += kThreads / kAcross) {
    acc_t<T> in[V] = {};
    if (first_row + r < a.rows && first_col + c < a.cols)
      load<V>(x + (first_row + r) * a.cols + first_col + c, in);
    f(r, c, in);
  }
}

/// The codes of a tile into shared memory, then into their rows. encode(c): the scale of column c
/// of the tile.
template <class T, bool packs, class Encode>
__device__ void transpose_tile(const Fp8Blocks& a, int64_t first_row, int64_t first_col,
                               uint32_t* words_of_tile, Encode&& encode) {
  constexpr int V = packs ? kPack<T> : 1;
  auto* const tile = reinterpret_cast<uint8_t*>(words_of_tile);
  each_tile_pack<V, T>(a, first_row, first_col, [&](int r, int c, const acc_t<T>(&in)[V]) {
    for (int v = 0; v < V; ++v)
      tile[(c + v) * kTilePitch + r] =
          rounded_code<false>(static_cast<float>(in[v]) * encode(c + v));
  });
  __syncthreads();
  store_tile<packs>(words_of_tile, first_row, first_col, a.cols, a.stride, a.codes);
}

/// A block: a tile whose columns are blocks, transposed.
template <class T, bool packs>
__global__ __launch_bounds__(kThreads) void encode_columns(Fp8Blocks a) {
  constexpr int V = packs ? kPack<T> : 1, kSlots = kThreads / (kTileCols / V);
  __shared__ uint32_t words_of_tile[kTileCols * kTilePitch / 4];
  __shared__ float found[kSlots][kTileCols + 1], encodes[kTileCols];
  const int64_t first_row = int64_t{blockIdx.x} * kTileRows,
                first_col = int64_t{blockIdx.y} * kTileCols;
  float largest[V] = {};
  each_tile_pack<V, T>(a, first_row, first_col, [&](int, int, const acc_t<T>(&in)[V]) {
    for (int v = 0; v < V; ++v) {
      const float size = size_of(in[v]);
      if (size > largest[v]) largest[v] = size;
    }
  });
  const int slot = static_cast<int>(threadIdx.x) / (kTileCols / V),
            column = static_cast<int>(threadIdx.x) % (kTileCols / V) * V;
  for (int v = 0; v < V; ++v) found[slot][column + v] = largest[v];
  __syncthreads();
  if (const auto c = static_cast<int>(threadIdx.x); c < kTileCols) {
    float most = 0;
    for (int s = 0; s < kSlots; ++s)
      if (found[s][c] > most) most = found[s][c];
    encodes[c] = block_encode_of(most);
    if (first_col + c < a.cols)
      a.scales[blockIdx.x * a.scale_stride + first_col + c] = 1 / encodes[c];
  }
  __syncthreads();
  transpose_tile<T, packs>(a, first_row, first_col, words_of_tile,
                           [&](int c) { return encodes[c]; });
}

/// A block: a square of x with one scale.
template <class T, bool packs, bool transposed>
__global__ __launch_bounds__(kThreads) void encode_squares(Fp8Blocks a) {
  constexpr int V = packs ? kPack<T> : 1;
  __shared__ uint32_t words_of_tile[transposed ? kTileCols * kTilePitch / 4 : 1];
  __shared__ float warps[kThreads / 32];
  const int64_t first_row = int64_t{blockIdx.x} * kBlock, first_col = int64_t{blockIdx.y} * kBlock;
  float largest = 0;
  for (int part = 0; part < kBlock; part += kTileCols)
    each_tile_pack<V, T>(a, first_row, first_col + part, [&](int, int, const acc_t<T>(&in)[V]) {
      for (int v = 0; v < V; ++v) {
        const float size = size_of(in[v]);
        if (size > largest) largest = size;
      }
    });
  for (int lanes = 16; lanes > 0; lanes /= 2) {
    const float other = __shfl_xor_sync(0xFFFFFFFFu, largest, lanes);
    if (other > largest) largest = other;
  }
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = largest;
  __syncthreads();
  for (int w = 0; w < kThreads / 32; ++w)
    if (warps[w] > largest) largest = warps[w];
  const float encode = block_encode_of(largest);
  if (threadIdx.x == 0) {
    const int64_t row = transposed ? blockIdx.y : blockIdx.x,
                  block = transposed ? blockIdx.x : blockIdx.y;
    a.scales[row * a.scale_stride + block] = 1 / encode;
  }
  if constexpr (transposed) {
    for (int part = 0; part < kBlock; part += kTileCols) {
      __syncthreads(); // the tile may still be read
      transpose_tile<T, packs>(a, first_row, first_col + part, words_of_tile,
                               [&](int) { return encode; });
    }
  } else {
    constexpr int kAcross = kBlock / kCodes;
    const auto* const x = static_cast<const T*>(a.x);
    for (int i = static_cast<int>(threadIdx.x); i < kBlock * kAcross; i += kThreads) {
      const int64_t row = first_row + i / kAcross, col = first_col + i % kAcross * kCodes;
      if (row >= a.rows || col >= a.stride) continue;
      acc_t<T> in[kCodes];
      load_group<packs>(x + row * a.cols, col, a.cols, in);
      store_group<false, packs>(a.codes + row * a.stride, col, a.stride, in, encode);
    }
  }
}

/// Which kernel, by type. Not by `if constexpr` in lambdas: see device.cuh.
template <class T, bool packs> void run_packed(const Fp8Blocks& a, const Context& context) {
  const auto along = static_cast<unsigned>((a.stride + kBlock - 1) / kBlock);
  if (a.recipe == QuantRecipe::kBlockwise128x128) {
    const int64_t rows = a.transposed ? a.cols : a.rows;
    const auto down = static_cast<unsigned>((rows + kBlock - 1) / kBlock);
    if (a.transposed)
      launch("fp8_blocks", encode_squares<T, packs, true>, dim3(along, down), kThreads, context, a);
    else
      launch("fp8_blocks", encode_squares<T, packs, false>, dim3(down, along), kThreads, context,
             a);
  } else if (a.transposed) {
    launch("fp8_blocks", encode_columns<T, packs>,
           dim3(along, static_cast<unsigned>((a.cols + kTileCols - 1) / kTileCols)), kThreads,
           context, a);
  } else {
    launch("fp8_blocks", encode_rows<T, packs>, stride_blocks(a.rows * along * (kBlock / kCodes)),
           kThreads, context, a);
  }
}
template <class T> void run_type(const Fp8Blocks& a, const Context& context) {
  // Whole groups, without columns that are filled up.
  const bool packs = takes_packs<T>({a.x}, {a.cols}) &&
                     reinterpret_cast<uintptr_t>(a.codes) % kCodes == 0 && a.stride % kCodes == 0 &&
                     (a.transposed || a.cols == a.stride);
  if (packs)
    run_packed<T, true>(a, context);
  else
    run_packed<T, false>(a, context);
}

} // namespace

void Fp8BlocksCuda::run(const Fp8Blocks& a, const Context& context) {
  if ((a.transposed ? a.cols : a.rows) == 0 || a.stride == 0) return;
  visit_dtype(a.dtype, [&](auto t) { run_type<decltype(t)>(a, context); });
}

} // namespace pentatron::kernels
