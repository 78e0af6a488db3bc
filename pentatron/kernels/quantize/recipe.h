/// How a tensor becomes low precision: its codes, its blocks and their scales. The rules are
/// TransformerEngine's, in fp32 with rounding to nearest even and without flushing subnormals.
///
/// A block shares a scale, from amax, the largest |x| in it; NaN is ignored. Blocks of a product's
/// operand lie along the dimension that the product sums over.
///   tensorwise   encode = M / amax with M the largest number of the code (infinite: the largest
///   fp32 number;
///                amax 0 or infinite: 1), scale = 1 / encode, code = cast(x encode)
///   blockwise    the same with encode rounded down to a power of two
///   mxfp8        byte = exponent of amax / 448, rounded up; code = cast(x / 2^(byte - 127))
///   nvfp4        two levels: S = 2688 / amax of the tensor, global scale = 1 / S; d =
///   cast_e4m3(amax S / 6);
///                code = cast_e2m1(x / (d global scale))
/// Sources: Micikevicius et al. 2022 (arXiv 2209.05433), DeepSeek-V3 (2412.19437), OCP MX 1.0,
/// NVIDIA 2025 (2509.25149).
#pragma once

#include <array>
#include <cfloat>
#include <cstdint>
#include <string_view>

#include "pentatron/kernels/quantize/formats.h"

namespace pentatron::kernels {

enum class QuantRecipe : uint8_t {
  kTensorwiseE4m3,
  kTensorwiseE5m2,
  kBlockwise1x128,
  kBlockwise128x128,
  kMxfp8,
  kNvfp4,
  kNvfp4Square,
};

enum class ScaleFormat : uint8_t { kFloat32, kPowerOfTwo, kE8M0, kE4M3 };

struct RecipeTraits {
  std::string_view name; ///< "blockwise_1x128"
  CodeFormat code;
  int64_t block_rows = 0; ///< 0: the whole tensor
  int64_t block_cols = 0;
  ScaleFormat scale = ScaleFormat::kFloat32;

  bool tensorwise() const { return block_rows == 0; }
  /// Whether the tensor has a scale in addition to those of its blocks.
  bool two_levels() const { return scale == ScaleFormat::kE4M3; }
  bool packed() const { return !code.has_nan; } ///< two codes a byte
};

inline constexpr std::array<RecipeTraits, 7> kRecipes = {{
    {"tensorwise_e4m3", kE4M3, 0, 0, ScaleFormat::kFloat32},
    {"tensorwise_e5m2", kE5M2, 0, 0, ScaleFormat::kFloat32},
    {"blockwise_1x128", kE4M3, 1, 128, ScaleFormat::kPowerOfTwo},
    {"blockwise_128x128", kE4M3, 128, 128, ScaleFormat::kPowerOfTwo},
    {"mxfp8_1x32", kE4M3, 1, 32, ScaleFormat::kE8M0},
    {"nvfp4_1x16", kE2M1, 1, 16, ScaleFormat::kE4M3},
    {"nvfp4_16x16", kE2M1, 16, 16, ScaleFormat::kE4M3},
}};
inline const RecipeTraits& traits(QuantRecipe recipe) {
  return kRecipes[static_cast<size_t>(recipe)];
}

/// The scale of a block or tensor.
struct BlockScale {
  float encode = 1; ///< codes are cast(x encode)
  float decode =
      1; ///< the value of a code is code decode, times the tensor's scale with two levels
  uint8_t byte = 0; ///< of kE8M0 and kE4M3
};

/// 2688 = 448 * 6 over amax, and what else a tensor-wide scale encodes with.
PT_HOST_DEVICE inline float encode_scale(float largest, float amax) {
  if (amax == 0 || amax > FLT_MAX) return 1;
  const float encode = largest / amax;
  return encode > FLT_MAX ? FLT_MAX : encode;
}
/// Of two levels: the largest e4m3 times the largest e2m1.
inline constexpr float kLargestOfTwoLevels = 2688;

PT_HOST_DEVICE inline BlockScale e8m0_scale(float amax) {
  const auto bits = __builtin_bit_cast(uint32_t, amax * (1.0f / 448.0f));
  uint32_t byte = bits >> 23;
  if (amax > FLT_MAX)
    byte = 254;
  else if ((bits & 0x7FFFFFu) != 0 && bits > 0x00400000u) // above 2^-127
    ++byte;
  const int exponent = static_cast<int>(byte) - 127;
  return {power_of_two(-exponent), power_of_two(exponent), static_cast<uint8_t>(byte)};
}

/// `tensor` is the encode scale of the whole tensor.
PT_HOST_DEVICE inline BlockScale e4m3_scale(float amax, float tensor) {
  constexpr CodeFormat format = kE4M3;
  const float d = rounded_to(format, amax * (tensor * (1.0f / 6.0f)));
  const float encode = 1.0f / (d * (1.0f / tensor));
  return {encode > FLT_MAX ? FLT_MAX : encode, d, code_of(format, d)};
}

/// `tensor` is the encode scale of the whole tensor, for two levels.
inline BlockScale block_scale(const RecipeTraits& recipe, float amax, float tensor) {
  switch (recipe.scale) {
  case ScaleFormat::kE8M0:
    return e8m0_scale(amax);
  case ScaleFormat::kE4M3:
    return e4m3_scale(amax, tensor);
  case ScaleFormat::kPowerOfTwo: {
    const float encode = std::bit_cast<float>(
        std::bit_cast<uint32_t>(encode_scale(recipe.code.largest, amax)) & 0xFF800000u);
    return {encode, 1.0f / encode, 0};
  }
  case ScaleFormat::kFloat32:
    break;
  }
  const float encode = encode_scale(recipe.code.largest, amax);
  return {encode, 1.0f / encode, 0};
}

} // namespace pentatron::kernels
