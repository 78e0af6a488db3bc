#include <algorithm>
#include <cmath>

#include "pentatron/kernels/common/scalar.h"
#include "pentatron/kernels/quantize/fp8_blocks_entries.h"

namespace pentatron::kernels {

namespace {

constexpr int64_t kBlock = 128;

template <class T> void encode(const Fp8Blocks& a) {
  const RecipeTraits& recipe = traits(a.recipe);
  const bool square = recipe.block_rows > 1;
  const int64_t rows = a.transposed ? a.cols : a.rows, cols = a.transposed ? a.rows : a.cols;
  const auto element = [&](int64_t r, int64_t c) {
    const int64_t at = a.transposed ? c * a.cols + r : r * a.cols + c;
    return static_cast<float>(to_acc(static_cast<const T*>(a.x)[at]));
  };
#pragma omp parallel for schedule(static) if (rows * cols > 1 << 14)
  for (int64_t first = 0; first < rows; first += recipe.block_rows) {
    const int64_t last = std::min(rows, first + recipe.block_rows);
    for (int64_t begin = 0; begin < a.stride; begin += kBlock) {
      const int64_t end = std::min(cols, begin + kBlock);
      float amax = 0;
      for (int64_t r = first; r < last; ++r)
        for (int64_t c = begin; c < end; ++c) {
          const float size = std::abs(element(r, c));
          amax = size > amax ? size : amax; // false for NaN
        }
      const BlockScale scale = block_scale(recipe, amax, 0);
      const int64_t block = begin / kBlock;
      a.scales[square ? first / kBlock * a.scale_stride + block : block * a.scale_stride + first] =
          scale.decode;
      for (int64_t r = first; r < last; ++r)
        for (int64_t c = begin; c < std::min(a.stride, begin + kBlock); ++c)
          a.codes[r * a.stride + c] =
              c < end ? code_of(recipe.code, rounded_to(recipe.code, element(r, c) * scale.encode))
                      : uint8_t{0};
    }
  }
}

} // namespace

void Fp8BlocksReference::run(const Fp8Blocks& args, const Context&) {
  visit_dtype(args.dtype, [&]<class T>(T) { encode<T>(args); });
}

} // namespace pentatron::kernels
