#include "pentatron/kernels/common/philox.cuh"
#include "pentatron/kernels/quantize/fp8_device.cuh"
#include "pentatron/kernels/quantize/tiled_blocks_entries.h"

namespace pentatron::kernels {

namespace {

using namespace cuda;

constexpr int kTileThreads = 256;
/// Of a row in a tile of x: neighbouring rows lie in different banks.
constexpr int kPitch = kTileCols + 1;

/// What the kernels know beside the arguments.
struct Plan {
  bool fp4, square, packs, by_chance;
  int64_t rows, blocks; ///< of scales, filled up
  uint2 key;
  const int64_t *row_ids, *col_ids;
};

/// A block of Philox: the random numbers of eight neighbouring columns.
struct Drawn {
  uint64_t row, eight;
  uint32_t words[4];
};
__device__ inline Drawn nothing_drawn() {
  return {~uint64_t{0}, ~uint64_t{0}, {0, 0, 0, 0}};
}

/// random_bits_of() of stochastic.h; columns that follow each other share what is drawn.
__device__ inline uint32_t random_bits(const Plan& plan, Drawn& drawn, int64_t row, int64_t col) {
  const auto r = static_cast<uint64_t>(plan.row_ids != nullptr ? plan.row_ids[row] : row);
  const int64_t id = plan.col_ids != nullptr ? plan.col_ids[col] : col;
  const auto eight = static_cast<uint64_t>(id / 8);
  if (drawn.row != r || drawn.eight != eight) {
    drawn = {r,
             eight,
             {static_cast<uint32_t>(r), static_cast<uint32_t>(r >> 32),
              static_cast<uint32_t>(eight), static_cast<uint32_t>(eight >> 32)}};
    philox(drawn.words, plan.key.x, plan.key.y);
  }
  const auto pair = static_cast<int>(id % 8) / 2;
  const uint32_t word = pair == 0   ? drawn.words[0]
                        : pair == 1 ? drawn.words[1]
                        : pair == 2 ? drawn.words[2]
                                    : drawn.words[3];
  return id % 2 == 0 ? word & 0xFFFFu : word >> 16;
}

/// The larger of two sizes; NaN is none.
__device__ inline float larger(float a, float b) {
  return b > a ? b : a;
}
/// The largest in lanes that differ in these bits.
__device__ inline float largest_of_lanes(float size, int lanes) {
  for (int apart = lanes / 2; apart > 0; apart /= 2)
    size = larger(size, __shfl_xor_sync(0xFFFFFFFFu, size, apart));
  return size;
}

__device__ inline BlockScale scale_of(const Plan& plan, float amax, float tensor) {
  return plan.fp4 ? e4m3_scale(amax, tensor) : e8m0_scale(amax);
}
__device__ inline uint8_t code_of_scaled(const Plan& plan, float scaled, uint32_t bits) {
  if (!plan.fp4) return rounded_code<false>(scaled);
  constexpr CodeFormat format = kE2M1;
  return code_of(format, plan.by_chance
                             ? rounded_stochastically(format, scaled, uniform_of_bits(bits))
                             : rounded_to(format, scaled));
}

/// Sixteen codes to their place in `codes`, from number `at` on.
__device__ inline void store_sixteen(const Plan& plan, uint8_t* codes, int64_t at,
                                     const uint8_t (&in)[kCodes]) {
  uint32_t words[kCodes / 4];
  if (!plan.fp4) {
    memcpy(words, in, sizeof words);
    return store_codes(codes + at, words);
  }
  for (int w = 0; w < kCodes / 8; ++w) {
    words[w] = 0;
    for (int j = 0; j < 8; ++j) words[w] |= uint32_t{in[w * 8 + j]} << (4 * j);
  }
#ifdef PENTATRON_EMULATED
  emulation::check_aligned(codes + at / 2, 8);
#endif
  *reinterpret_cast<uint2*>(codes + at / 2) = make_uint2(words[0], words[1]);
}

__device__ inline float tensor_encode(const TiledBlocks& a, const Plan& plan) {
  const float encode = plan.fp4 ? encode_scale(kLargestOfTwoLevels, *a.amax) : 1.0f;
  if (a.tensor_scale != nullptr && blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0)
    *a.tensor_scale = 1 / encode;
  return encode;
}

/// A thread: sixteen neighbouring numbers of a row, in lanes whose numbers share a scale: two of a
/// row, or of a square sixteen rows. Also of the rows and blocks that fill up tiles of scales.
template <class T> __global__ void tile_rows(TiledBlocks a, Plan plan) {
  const float tensor = tensor_encode(a, plan);
  const auto* const x = static_cast<const T*>(a.x);
  const int64_t groups = plan.fp4 ? plan.blocks : plan.blocks * 2;
  // Whole warps go on together: there are 128 rows for each group.
  for (int64_t g = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; g < plan.rows * groups;
       g += int64_t{gridDim.x} * blockDim.x) {
    const int64_t row = plan.square ? g / (groups * kCodes) * kCodes + g % kCodes : g / groups,
                  group = plan.square ? g / kCodes % groups : g % groups, col = group * kCodes;
    float in[kCodes] = {};
    if (row < a.rows && col < a.cols) {
      if (plan.packs && col + kCodes <= a.cols)
        load_group<true>(x + row * a.cols, col, a.cols, in);
      else
        load_group<false>(x + row * a.cols, col, a.cols, in);
    }
    float amax = 0;
#pragma unroll
    for (int j = 0; j < kCodes; ++j) amax = larger(amax, size_of(in[j]));
    amax = largest_of_lanes(amax, plan.square ? kCodes : plan.fp4 ? 1 : 2);
    const BlockScale scale = scale_of(plan, amax, tensor);
    if (plan.fp4 || group % 2 == 0)
      a.scales[tiled_scale_at(row, plan.fp4 ? group : group / 2, plan.blocks)] = scale.byte;
    if (row >= a.rows || col >= a.stride) continue;
    uint8_t codes[kCodes];
    Drawn drawn = nothing_drawn();
#pragma unroll
    for (int j = 0; j < kCodes; ++j) {
      const uint32_t bits =
          plan.by_chance && col + j < a.cols ? random_bits(plan, drawn, row, col + j) : 0;
      codes[j] = code_of_scaled(plan, in[j] * scale.encode, bits);
    }
    store_sixteen(plan, a.codes, row * a.stride + col, codes);
  }
}

/// A tile of x in fp32; elements outside of x are zeros.
template <int V, class T>
__device__ void load_tile(const TiledBlocks& a, int64_t first_row, int64_t first_col,
                          uint32_t* tile) {
  constexpr int kAcross = kTileCols / V;
  static_assert(kTileThreads % kAcross == 0);
  const auto* const x = static_cast<const T*>(a.x);
  const int c = static_cast<int>(threadIdx.x) % kAcross * V;
#pragma unroll 4
  for (int r = static_cast<int>(threadIdx.x) / kAcross; r < kTileRows;
       r += kTileThreads / kAcross) {
    float in[V] = {};
    if (first_row + r < a.rows && first_col + c < a.cols)
      load<V>(x + (first_row + r) * a.cols + first_col + c, in);
    for (int v = 0; v < V; ++v) tile[r * kPitch + c + v] = bits_of(in[v]);
  }
}

/// The random bits of a tile, two neighbouring columns in a word, packed.
__device__ inline void draw_tile(const TiledBlocks& a, const Plan& plan, int64_t first_row,
                                 int64_t first_col, uint32_t* tile) {
  constexpr int kAcross = kTileCols / 8;
  for (int i = static_cast<int>(threadIdx.x); i < kTileRows * kAcross; i += kTileThreads) {
    const int64_t row = first_row + i / kAcross, col = first_col + i % kAcross * 8;
    Drawn drawn = nothing_drawn();
    for (int w = 0; w < 4; ++w) {
      uint32_t word = 0;
      for (int j = 0; j < 2; ++j)
        if (row < a.rows && col + 2 * w + j < a.cols)
          word |= random_bits(plan, drawn, row, col + 2 * w + j) << (16 * j);
      tile[i * 4 + w] = word;
    }
  }
}

/// A block of threads: a tile of x, whose columns become rows of codes. A thread has 32 rows of a
/// column: a block of MXFP8, or two of NVFP4, of which squares lie in sixteen neighbouring lanes.
template <class T>
__global__ __launch_bounds__(kTileThreads) void tile_columns(TiledBlocks a, Plan plan) {
  constexpr int kHalves = 2, kRows = kHalves * kCodes;
  static_assert(kTileThreads / kTileCols * kRows == kTileRows);
  __shared__ uint32_t tile[kTileRows * kPitch];
  const float tensor = tensor_encode(a, plan);
  const int64_t first_row = int64_t{blockIdx.x} * kTileRows,
                first_col = int64_t{blockIdx.y} * kTileCols;
  if (plan.packs)
    load_tile<kPack<T>, T>(a, first_row, first_col, tile);
  else
    load_tile<1, T>(a, first_row, first_col, tile);
  __syncthreads();
  const int c = static_cast<int>(threadIdx.x) % kTileCols,
            r = static_cast<int>(threadIdx.x) / kTileCols * kRows;
  float in[kHalves][kCodes], amax[kHalves] = {};
#pragma unroll
  for (int h = 0; h < kHalves; ++h) {
#pragma unroll
    for (int j = 0; j < kCodes; ++j) {
      in[h][j] = float_of(tile[(r + h * kCodes + j) * kPitch + c]);
      amax[h] = larger(amax[h], size_of(in[h][j]));
    }
    if (plan.square) amax[h] = largest_of_lanes(amax[h], kCodes);
  }
  if (!plan.fp4) amax[0] = amax[1] = larger(amax[0], amax[1]);
  if (plan.by_chance) {
    __syncthreads(); // the tile has been read
    draw_tile(a, plan, first_row, first_col, tile);
    __syncthreads();
  }
  const int64_t out = first_col + c, at = first_row + r;
#pragma unroll
  for (int h = 0; h < kHalves; ++h) {
    const BlockScale scale = scale_of(plan, amax[h], tensor);
    const int64_t block = plan.fp4 ? at / kCodes + h : at / kRows;
    if (block < plan.blocks && (plan.fp4 || h == 0))
      a.scales[tiled_scale_at(out, block, plan.blocks)] = scale.byte;
    if (out >= a.cols || at >= a.stride) continue;
    uint8_t codes[kCodes];
#pragma unroll
    for (int j = 0; j < kCodes; ++j) {
      const int drawn = (r + h * kCodes + j) * (kTileCols / 2) + c / 2;
      const uint32_t bits = plan.by_chance ? tile[drawn] >> (c % 2 * 16) & 0xFFFFu : 0;
      codes[j] = code_of_scaled(plan, in[h][j] * scale.encode, bits);
    }
    store_sixteen(plan, a.codes, out * a.stride + at + h * kCodes, codes);
  }
}

template <class T> void run_type(const TiledBlocks& a, Plan plan, const Context& context) {
  plan.packs = takes_packs<T>({a.x}, {a.cols});
  if (a.transposed)
    return launch("tiled_blocks", tile_columns<T>,
                  dim3(static_cast<unsigned>((a.stride + kTileRows - 1) / kTileRows),
                       static_cast<unsigned>(plan.rows / kTileCols)),
                  kTileThreads, context, a, plan);
  const int64_t groups = plan.rows * plan.blocks * (plan.fp4 ? 1 : 2);
  launch("tiled_blocks", tile_rows<T>, stride_blocks(groups), kTileThreads, context, a, plan);
}

} // namespace

void TiledBlocksCuda::run(const TiledBlocks& a, const Context& context) {
  const ScaleTiles tiles = scale_tiles(a.recipe, a.transposed ? a.cols : a.rows, a.stride);
  if (tiles.bytes() == 0) return;
  Plan plan = {.fp4 = a.recipe != QuantRecipe::kMxfp8,
               .square = a.recipe == QuantRecipe::kNvfp4Square,
               .packs = false,
               .by_chance = a.stochastic != nullptr,
               .rows = tiles.rows,
               .blocks = tiles.blocks,
               .key = make_uint2(0, 0),
               .row_ids = nullptr,
               .col_ids = nullptr};
  if (a.stochastic != nullptr) {
    plan.key = make_uint2(a.stochastic->key[0], a.stochastic->key[1]);
    plan.row_ids = a.stochastic->row_ids;
    plan.col_ids = a.stochastic->col_ids;
  }
  switch (a.dtype) {
  case DType::kFloat32:
    return run_type<float>(a, plan, context);
  case DType::kBFloat16:
    return run_type<__nv_bfloat16>(a, plan, context);
  case DType::kFloat16:
    return run_type<__half>(a, plan, context);
  case DType::kFloat64: // refused
    return;
  }
}

} // namespace pentatron::kernels
