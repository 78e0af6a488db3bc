/// Trained matrices in FP8 (e4m3): the codes that their products multiply, made on the ranks that
/// own the values and sent in place of them.
///
/// Recipes with the same codes along rows and along columns: tensorwise_e4m3, a scale for each
/// matrix, and blockwise_128x128 (kernels/quantize/recipe.h). A region is what shares a scale;
/// regions are numbered by (matrix, row of blocks, column of blocks). Codes and scales are those of
/// the whole tensor, so products have the same bits as with the values themselves.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "pentatron/kernels/quantize/recipe.h"

namespace pentatron::nn {

/// The values that a quantised tensor stands for, without the scale of the whole tensor; bf16 holds
/// them, in fp64 models they are fp64. For scaled products they are codes, [rows, cols], or
/// [cols, rows filled up] of products along the rows, e2m1 two in a byte, and the scales are on
/// their device: one, or those of blocks as LibTorch takes them. With the scales of blocks of 128
/// rows of zeros may follow.
struct QuantizedValues {
  at::Tensor values;
  double scale = 1;
  /// fp32 [], [rows, blocks] or [blocks filled up, rows of blocks]; of MXFP8 and NVFP4 bytes in
  /// tiles (kernels/quantize/tiled_blocks.h), flat.
  at::Tensor device_scale = {};
  bool square_blocks = false;          ///< of 128 x 128, the third shape of scales
  at::Tensor device_tensor_scale = {}; ///< fp32 []; of NVFP4, in addition to those of blocks
};

class Fp8Weight {
 public:
  static bool supports(kernels::QuantRecipe recipe);
  /// Of a tensor [rows, columns] or [matrices, rows, columns].
  static int64_t num_regions(kernels::QuantRecipe recipe, const std::vector<int64_t>& shape);
  /// Raises `amax` [regions] to the largest sizes of `values` [n], which are the elements from
  /// `begin` of the flattened tensor.
  static void add_amax(kernels::QuantRecipe recipe, const std::vector<int64_t>& shape,
                       int64_t begin, const at::Tensor& values, float* amax);
  /// The codes [n] of the same elements, with `amax` of the whole tensor.
  static void encode(kernels::QuantRecipe recipe, const std::vector<int64_t>& shape, int64_t begin,
                     const at::Tensor& values, const float* amax, uint8_t* codes);

  /// `codes`: bytes in the tensor's shape; `amax`: fp32 [regions]. Both are kept, not copied.
  Fp8Weight(kernels::QuantRecipe recipe, at::Tensor codes, at::Tensor amax);

  /// A matrix as its products take it.
  QuantizedValues matrix(int64_t index, at::ScalarType type) const;
  /// The values that the codes stand for, in the tensor's shape.
  at::Tensor dense(at::ScalarType type) const;

 private:
  kernels::BlockScale scale_of(int64_t region) const;

  kernels::QuantRecipe recipe_;
  at::Tensor codes_; ///< [matrices, rows, columns]
  at::Tensor amax_;
  std::vector<int64_t> shape_;
};

} // namespace pentatron::nn
