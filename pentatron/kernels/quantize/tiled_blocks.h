/// Operands of scaled products on GPUs of compute capability 10.0 and later, in MXFP8 and NVFP4:
/// the numbers of these recipes (recipe.h), to the bit.
///
/// x [rows, cols] row-major and packed; codes [rows, stride], transposed [cols, stride], with zeros
/// after the last column, of e2m1 two in a byte: products sum along the rows of codes, and so lie
/// the blocks. A value is a code times the scale of its block, with two levels times
/// `tensor_scale`. Each row has the scales of its own blocks, of squares the same in sixteen rows.
///
/// Scales are bytes in tiles of 128 rows and 4 blocks, as cuBLASLt reads them (tiled_scale_at());
/// rows and blocks that fill up the last tiles have the scales of zeros.
///
/// Numbers, also the ids of `stochastic`, lie in the memory of the device.
#pragma once

#include <cstdint>
#include <span>

#include "pentatron/kernels/contract.h"
#include "pentatron/kernels/quantize/recipe.h"
#include "pentatron/kernels/quantize/stochastic.h"

namespace pentatron::kernels {

/// A row of codes is a multiple of it.
inline constexpr int64_t kTiledStride = 32;

struct TiledBlocks {
  QuantRecipe recipe = QuantRecipe::kMxfp8;
  DType dtype = DType::kFloat32;
  int64_t rows = 0;
  int64_t cols = 0;
  bool transposed = false;
  int64_t stride = 0; ///< numbers in a row of codes
  const void* x = nullptr;
  const float* amax = nullptr;            ///< of the tensor; with two levels only
  const Stochastic* stochastic = nullptr; ///< as in quantize.h, of rows and columns of x; e2m1 only
  uint8_t* codes = nullptr;               ///< its address is a multiple of 16
  uint8_t* scales = nullptr;
  float* tensor_scale = nullptr; ///< with two levels only
};
/// Throws ShapeError if a size is negative, a row of codes does not fit into `stride`, for another
/// stride than a multiple of kTiledStride, for another recipe, or for codes that are not aligned.
void tiled_blocks(const TiledBlocks& args, const Context& context = {});

/// What scales of `rows` rows of `stride` codes fill: whole tiles.
struct ScaleTiles {
  int64_t rows = 0, blocks = 0;
  int64_t bytes() const { return rows * blocks; }
};
ScaleTiles scale_tiles(QuantRecipe recipe, int64_t rows, int64_t stride);

/// Where the scale of a block lies; `blocks` are those of a row that is filled up. A tile has 32
/// groups of 16 bytes: rows r, r + 32, r + 64 and r + 96 with four blocks each.
PT_HOST_DEVICE inline int64_t tiled_scale_at(int64_t row, int64_t block, int64_t blocks) {
  const int64_t tile = row / 128 * (blocks / 4) + block / 4;
  return (tile * 32 + row % 32) * 16 + row % 128 / 32 * 4 + block % 4;
}

std::span<const Entry<TiledBlocks>> tiled_blocks_entries();

} // namespace pentatron::kernels
