/// Tensors in low precision: quantise to codes and scales, or directly to the values that they
/// stand for; and back.
///
/// Shapes: x, values [rows, cols]; codes [rows, cols], or [rows, ceil(cols / 2)] where two share a
/// byte (the even column in the low half); scales one for each block, [ceil(rows / block_rows),
/// ceil(cols / block_cols)], fp32 or a byte (recipe.h); all row-major and packed. Blocks at the end
/// may be smaller. Doubles are cast to fp32 first.
///
/// `values` are code times the block's scale, without `tensor_scale` (1 but for tensorwise recipes
/// and nvfp4). So they have at most six significant bits: bf16 holds them exactly (but for numbers
/// below 2^-126), and a product of bf16 values with sums in fp32, times both tensor scales, is the
/// product of the quantised tensors.
#pragma once

#include <cstdint>
#include <span>

#include "pentatron/kernels/contract.h"
#include "pentatron/kernels/quantize/recipe.h"
#include "pentatron/kernels/quantize/stochastic.h"

namespace pentatron::kernels {

struct Quantize {
  QuantRecipe recipe = QuantRecipe::kTensorwiseE4m3;
  DType dtype = DType::kFloat32;
  int64_t rows = 0;
  int64_t cols = 0;
  /// Blocks of a row lie along a column instead (values only): for products that sum over rows.
  bool along_rows = false;
  const void* x = nullptr;
  const float* amax = nullptr; ///< of the tensor, in place of that of x: where ranks share a tensor
  const Stochastic* stochastic = nullptr; ///< rounds up or down by chance; null: to the nearest

  // Each may be null.
  uint8_t* codes = nullptr;
  void* scales = nullptr;
  float* tensor_scale = nullptr; ///< with two levels: the global scale; tensorwise: the scale
  void* values = nullptr;
  DType values_dtype = DType::kFloat32;
};

/// Throws ShapeError if a size is negative, or for codes or scales along rows.
void quantize(const Quantize& args, const Context& context = {});

/// amax of a tensor, in fp32; NaN is ignored.
float largest_size(DType dtype, int64_t n, const void* x);

struct Dequantize {
  QuantRecipe recipe = QuantRecipe::kTensorwiseE4m3;
  int64_t rows = 0;
  int64_t cols = 0;
  const uint8_t* codes = nullptr;
  const void* scales = nullptr;
  float tensor_scale = 1; ///< the global scale, with two levels only
  float* values = nullptr;
};

/// values = code scale, with two levels (code scale) tensor_scale. Throws ShapeError if a size is
/// negative.
void dequantize(const Dequantize& args);

/// Bytes of `codes`, and numbers of `scales`.
int64_t code_bytes(QuantRecipe recipe, int64_t rows, int64_t cols);
int64_t scale_rows(QuantRecipe recipe, int64_t rows);
int64_t scale_cols(QuantRecipe recipe, int64_t cols);

std::span<const Entry<Quantize>> quantize_entries();

} // namespace pentatron::kernels
