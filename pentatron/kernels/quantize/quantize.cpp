#include "pentatron/kernels/quantize/quantize.h"

#include <algorithm>
#include <cmath>

#include "pentatron/base/error.h"
#include "pentatron/kernels/common/dispatch.h"
#include "pentatron/kernels/common/parallel.h"
#include "pentatron/kernels/common/refuse.h"
#include "pentatron/kernels/common/scalar.h"
#include "pentatron/kernels/quantize/quantize_entries.h"

namespace pentatron::kernels {

namespace {

template <class Refuse>
std::string refuse_doubles(const Quantize& a, const Context& c, Refuse refuse) {
  if (a.values != nullptr && a.values_dtype == DType::kFloat64) return "gives no float64";
  return refuse(a, c);
}
std::string refuse_avx2(const Quantize& a, const Context& c) {
  return refuse_doubles(a, c, refuse_float64_or_no_avx2<Quantize>);
}
std::string refuse_avx512(const Quantize& a, const Context& c) {
  return refuse_doubles(a, c, refuse_float64_or_no_avx512<Quantize>);
}

constexpr Entry<Quantize> kEntries[] = {
#if defined(__x86_64__)
    {"avx512", refuse_avx512, QuantizeAvx512::run},
    {"avx2", refuse_avx2, QuantizeAvx2::run},
#endif
    {"reference", refuse_unless_cpu, QuantizeReference::run},
};

int64_t blocks(int64_t size, int64_t block) {
  return block == 0 ? 1 : (size + block - 1) / block;
}

} // namespace

std::span<const Entry<Quantize>> quantize_entries() {
  return kEntries;
}

int64_t code_bytes(QuantRecipe recipe, int64_t rows, int64_t cols) {
  return rows * (traits(recipe).packed() ? (cols + 1) / 2 : cols);
}
int64_t scale_rows(QuantRecipe recipe, int64_t rows) {
  return blocks(rows, traits(recipe).block_rows);
}
int64_t scale_cols(QuantRecipe recipe, int64_t cols) {
  return blocks(cols, traits(recipe).block_cols);
}

float largest_size(DType dtype, int64_t n, const void* x) {
#if defined(__x86_64__)
  if (dtype != DType::kFloat64 && cpu_features().avx512)
    return QuantizeAvx512::largest_size(dtype, n, x);
  if (dtype != DType::kFloat64 && cpu_features().avx2)
    return QuantizeAvx2::largest_size(dtype, n, x);
#endif
  return QuantizeReference::largest_size(dtype, n, x);
}

TensorScale scale_tensor(const Quantize& a) {
  const RecipeTraits& recipe = traits(a.recipe);
  TensorScale result;
  if (recipe.tensorwise() || recipe.two_levels()) {
    const float amax = a.amax != nullptr ? *a.amax : largest_size(a.dtype, a.rows * a.cols, a.x);
    result.encode =
        encode_scale(recipe.two_levels() ? kLargestOfTwoLevels : recipe.code.largest, amax);
  }
  if (recipe.tensorwise()) {
    // Values are the codes: what the scale makes of them need not fit into bf16.
    result.block = {result.encode, 1, 0};
    if (a.scales != nullptr) *static_cast<float*>(a.scales) = 1 / result.encode;
  }
  if (a.tensor_scale != nullptr) *a.tensor_scale = 1 / result.encode;
  return result;
}

void quantize(const Quantize& args, const Context& context) {
  if (args.rows < 0 || args.cols < 0)
    raise<ShapeError>("quantize of [{}, {}]: a size is negative", args.rows, args.cols);
  if (args.along_rows && (args.codes != nullptr || args.scales != nullptr))
    raise<ShapeError>("quantize along rows gives values only");
  run_entry(quantize_class(args.dtype, args.recipe), quantize_entries(), args, context);
}

void dequantize(const Dequantize& a) {
  if (a.rows < 0 || a.cols < 0)
    raise<ShapeError>("dequantize of [{}, {}]: a size is negative", a.rows, a.cols);
  const RecipeTraits& recipe = traits(a.recipe);
  float table[256];
  for (int code = 0; code < 256; ++code)
    table[code] = value_of(recipe.code, static_cast<uint8_t>(code));
  const int64_t row_bytes = code_bytes(a.recipe, 1, a.cols), across = scale_cols(a.recipe, a.cols);
  parallel_blocks(a.rows, 16, [&](int64_t begin, int64_t end, int64_t) {
    for (int64_t r = begin; r < end; ++r)
      for (int64_t c = 0; c < a.cols; ++c) {
        const uint8_t byte = a.codes[r * row_bytes + (recipe.packed() ? c / 2 : c)];
        const int code = !recipe.packed() ? byte : c % 2 == 0 ? byte & 15 : byte >> 4;
        const int64_t block =
            recipe.tensorwise() ? 0 : r / recipe.block_rows * across + c / recipe.block_cols;
        float scale = 1;
        if (recipe.scale == ScaleFormat::kE8M0)
          scale = value_of_e8m0(static_cast<const uint8_t*>(a.scales)[block]);
        else if (recipe.scale == ScaleFormat::kE4M3)
          scale = value_of(kE4M3, static_cast<const uint8_t*>(a.scales)[block]);
        else
          scale = static_cast<const float*>(a.scales)[block];
        const float value = table[code] * scale;
        a.values[r * a.cols + c] = recipe.two_levels() ? value * a.tensor_scale : value;
      }
  });
}

} // namespace pentatron::kernels
