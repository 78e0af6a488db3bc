/// The implementations behind quantize.h; quantize.cpp orders them.
#pragma once

#include <algorithm>

#include "pentatron/kernels/quantize/quantize.h"

namespace pentatron::kernels {

/// The sizes are those of quantize.h.
struct QuantizeReference {
  static void run(const Quantize& args, const Context& context);
  static float largest_size(DType dtype, int64_t n, const void* x);
};

struct QuantizeAvx2 {
  static void run(const Quantize& args, const Context& context);
  static float largest_size(DType dtype, int64_t n, const void* x);
};

struct QuantizeAvx512 {
  static void run(const Quantize& args, const Context& context);
  static float largest_size(DType dtype, int64_t n, const void* x);
};

/// What the whole tensor decides, before its blocks.
struct TensorScale {
  float encode = 1;
  BlockScale block; ///< of tensorwise recipes
};
/// Writes `tensor_scale` and the one scale of tensorwise recipes.
TensorScale scale_tensor(const Quantize& args);

/// Rows and columns of a block of this tensor, at least 1; of tensorwise recipes a row.
struct BlockShape {
  int64_t rows, cols;
};
inline BlockShape block_shape(const Quantize& a) {
  const RecipeTraits& recipe = traits(a.recipe);
  if (recipe.tensorwise()) return {1, std::max<int64_t>(a.cols, 1)};
  if (a.along_rows) return {recipe.block_cols, recipe.block_rows};
  return {recipe.block_rows, recipe.block_cols};
}

} // namespace pentatron::kernels
