/// Operands of scaled FP8 products on GPUs whose blocks have scales of their own: the numbers of
/// the blockwise recipes (recipe.h), to the bit.
///
/// x [rows, cols] row-major and packed; codes [rows, stride], transposed [cols, stride], with zeros
/// after the last column: products sum along the rows of codes, and so lie the blocks. Scales are
/// fp32; a value is a code times the scale of its block. Block b of row r of codes has
///   blockwise_1x128     scales[b * scale_stride + r]
///   blockwise_128x128   scales[r / 128 * scale_stride + b]
/// which is how cuBLASLt reads them. Elements of `scales` between these are not written.
#pragma once

#include <cstdint>
#include <span>

#include "pentatron/kernels/contract.h"
#include "pentatron/kernels/quantize/recipe.h"

namespace pentatron::kernels {

struct Fp8Blocks {
  QuantRecipe recipe = QuantRecipe::kBlockwise1x128;
  DType dtype = DType::kFloat32;
  int64_t rows = 0;
  int64_t cols = 0;
  bool transposed = false;
  int64_t stride = 0; ///< of a row of codes
  const void* x = nullptr;
  uint8_t* codes = nullptr;
  float* scales = nullptr;
  int64_t scale_stride = 0;
};
/// Throws ShapeError if a size is negative, a row of codes does not fit into `stride`, scales do
/// not fit into `scale_stride`, or for another recipe.
void fp8_blocks(const Fp8Blocks& args, const Context& context = {});

std::span<const Entry<Fp8Blocks>> fp8_blocks_entries();

} // namespace pentatron::kernels
