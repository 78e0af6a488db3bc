#include <algorithm>
#include <cmath>

#include "pentatron/kernels/common/scalar.h"
#include "pentatron/kernels/quantize/tiled_blocks_entries.h"

namespace pentatron::kernels {

namespace {

template <class T> void encode(const TiledBlocks& a) {
  const RecipeTraits& recipe = traits(a.recipe);
  const int64_t rows = a.transposed ? a.cols : a.rows, cols = a.transposed ? a.rows : a.cols;
  const ScaleTiles tiles = scale_tiles(a.recipe, rows, a.stride);
  if (tiles.bytes() == 0) return;
  const float tensor = recipe.two_levels() ? encode_scale(kLargestOfTwoLevels, *a.amax) : 1;
  if (a.tensor_scale != nullptr) *a.tensor_scale = 1 / tensor;
  const auto element = [&](int64_t r, int64_t c) {
    const int64_t at = a.transposed ? c * a.cols + r : r * a.cols + c;
    return static_cast<float>(to_acc(static_cast<const T*>(a.x)[at]));
  };
  const auto code = [&](int64_t r, int64_t c, float encode) {
    const float scaled = element(r, c) * encode;
    if (a.stochastic == nullptr) return code_of(recipe.code, rounded_to(recipe.code, scaled));
    const float uniform =
        a.transposed ? uniform_of(*a.stochastic, c, r) : uniform_of(*a.stochastic, r, c);
    return code_of(recipe.code, rounded_stochastically(recipe.code, scaled, uniform));
  };
#pragma omp parallel for schedule(static) if (rows * cols > 1 << 14)
  for (int64_t first = 0; first < tiles.rows; first += recipe.block_rows)
    for (int64_t block = 0; block < tiles.blocks; ++block) {
      const int64_t begin = block * recipe.block_cols;
      const int64_t last = std::min(rows, first + recipe.block_rows),
                    end = std::min(cols, begin + recipe.block_cols);
      float amax = 0;
      for (int64_t r = first; r < last; ++r)
        for (int64_t c = begin; c < end; ++c) {
          const float size = std::abs(element(r, c));
          amax = size > amax ? size : amax; // false for NaN
        }
      const BlockScale scale = block_scale(recipe, amax, tensor);
      for (int64_t r = first; r < first + recipe.block_rows; ++r)
        a.scales[tiled_scale_at(r, block, tiles.blocks)] = scale.byte;
      for (int64_t r = first; r < last; ++r)
        for (int64_t c = begin; c < std::min(a.stride, begin + recipe.block_cols); ++c) {
          const uint8_t given = c < end ? code(r, c, scale.encode) : uint8_t{0};
          if (!recipe.packed()) {
            a.codes[r * a.stride + c] = given;
            continue;
          }
          uint8_t& byte = a.codes[(r * a.stride + c) / 2];
          byte = c % 2 == 0 ? given : static_cast<uint8_t>(byte | given << 4);
        }
    }
}

} // namespace

void TiledBlocksReference::run(const TiledBlocks& args, const Context&) {
  visit_dtype(args.dtype, [&]<class T>(T) { encode<T>(args); });
}

} // namespace pentatron::kernels
