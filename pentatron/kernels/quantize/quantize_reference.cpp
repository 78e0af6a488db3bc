#include <cmath>

#include "pentatron/kernels/common/scalar.h"
#include "pentatron/kernels/quantize/quantize_entries.h"

namespace pentatron::kernels {

namespace {

struct Block {
  int64_t row, rows, col, cols;
};

template <class T> void quantize_block(const Quantize& a, const Block& b, const BlockScale& scale) {
  const RecipeTraits& recipe = traits(a.recipe);
  const int64_t row_bytes = code_bytes(a.recipe, 1, a.cols);
  for (int64_t r = b.row; r < b.row + b.rows; ++r)
    for (int64_t c = b.col; c < b.col + b.cols; ++c) {
      const auto x = static_cast<float>(to_acc(static_cast<const T*>(a.x)[r * a.cols + c]));
      const float number = a.stochastic == nullptr
                               ? rounded_to(recipe.code, x * scale.encode)
                               : rounded_stochastically(recipe.code, x * scale.encode,
                                                        uniform_of(*a.stochastic, r, c));
      if (a.values != nullptr)
        store_from_double(a.values, a.values_dtype, r * a.cols + c, number * scale.decode);
      if (a.codes == nullptr) continue;
      const uint8_t code = code_of(recipe.code, number);
      if (!recipe.packed()) {
        a.codes[r * row_bytes + c] = code;
      } else {
        uint8_t& byte = a.codes[r * row_bytes + c / 2];
        byte = c % 2 == 0 ? code : static_cast<uint8_t>(byte | code << 4);
      }
    }
}

template <class T> float largest_in(const Quantize& a, const Block& b) {
  float amax = 0;
  for (int64_t r = b.row; r < b.row + b.rows; ++r)
    for (int64_t c = b.col; c < b.col + b.cols; ++c) {
      const float size =
          std::abs(static_cast<float>(to_acc(static_cast<const T*>(a.x)[r * a.cols + c])));
      amax = size > amax ? size : amax; // false for NaN
    }
  return amax;
}

template <class T> void apply(const Quantize& a) {
  const RecipeTraits& recipe = traits(a.recipe);
  const TensorScale tensor = scale_tensor(a);
  const BlockShape shape = block_shape(a);
  const int64_t across = (a.cols + shape.cols - 1) / shape.cols;
#pragma omp parallel for schedule(static) if (a.rows * a.cols > 1 << 12)
  for (int64_t r = 0; r < a.rows; r += shape.rows)
    for (int64_t c = 0; c < a.cols; c += shape.cols) {
      const Block block = {r, std::min(shape.rows, a.rows - r), c,
                           std::min(shape.cols, a.cols - c)};
      BlockScale scale = tensor.block;
      if (!recipe.tensorwise()) {
        scale = block_scale(recipe, largest_in<T>(a, block), tensor.encode);
        const int64_t number = r / shape.rows * across + c / shape.cols;
        if (a.scales != nullptr && recipe.scale == ScaleFormat::kPowerOfTwo)
          static_cast<float*>(a.scales)[number] = scale.decode;
        else if (a.scales != nullptr)
          static_cast<uint8_t*>(a.scales)[number] = scale.byte;
      }
      quantize_block<T>(a, block, scale);
    }
}

} // namespace

void QuantizeReference::run(const Quantize& args, const Context&) {
  visit_dtype(args.dtype, [&]<class T>(T) { apply<T>(args); });
}

float QuantizeReference::largest_size(DType dtype, int64_t n, const void* x) {
  float result = 0;
  visit_dtype(dtype, [&]<class T>(T) {
    const auto* const p = static_cast<const T*>(x);
#pragma omp parallel for schedule(static) reduction(max : result) if (n > 1 << 14)
    for (int64_t i = 0; i < n; ++i) {
      const float size = std::abs(static_cast<float>(to_acc(p[i])));
      result = size > result ? size : result; // false for NaN
    }
  });
  return result;
}

} // namespace pentatron::kernels
