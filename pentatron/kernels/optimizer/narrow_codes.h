/// One number of narrow.h, for the CPU and for CUDA; optimizer_simd_body.h has the same steps for
/// vectors.
#pragma once

#include <cmath>
#include <cstdint>

#include "pentatron/kernels/common/host_device.h"
#include "pentatron/kernels/optimizer/narrow.h"

namespace pentatron::kernels {

/// A sign, an exponent and a mantissa; codes are ordered as the numbers.
struct NarrowFormat {
  int mantissa = 7;
  int least = 1;  ///< exponent of the smallest normal number, in the bits of fp32
  int width = 16; ///< bits of a code
  uint32_t largest = 0x7F7F, infinity = 0x7F80, nan = 0x7FC0; ///< codes
  float largest_number = 0x1.FEp127f;
};
PT_HOST_DEVICE constexpr NarrowFormat format_of(NarrowType type) {
  switch (type) {
  case NarrowType::kBFloat16:
    break;
  case NarrowType::kFloat16:
    return {10, 113, 16, 0x7BFF, 0x7BFF, 0x7E00, 65504};
  case NarrowType::kE4M3:
    return {3, 121, 8, 0x7E, 0x7E, 0x7F, 448};
  }
  return {};
}

// With __builtin_bit_cast, as in quantize/formats.h.

PT_HOST_DEVICE inline uint32_t code_by_chance(const NarrowFormat& f, float x, uint32_t random) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, x), size = bits & 0x7FFFFFFFu;
  const uint32_t sign = bits >> 31 << (f.width - 1);
  if (size >= 0x7F800000u) return sign | (size > 0x7F800000u ? f.nan : f.infinity);
  const int field = static_cast<int>(size >> 23), exponent = field > 1 ? field : 1;
  const uint32_t digits = field > 0 ? (size & 0x7FFFFFu) | 0x800000u : size;
  // How many digits lie behind the last place of the type.
  const int shift = 23 - f.mantissa + (exponent < f.least ? f.least - exponent : 0);
  const uint32_t below = shift < 32 ? digits >> shift : 0;
  const uint32_t share = shift <= 32   ? digits << (32 - shift)
                         : shift <= 56 ? digits >> (shift - 32)
                                       : 0;
  const int above = exponent > f.least ? exponent - f.least : 0;
  const uint32_t code =
      (static_cast<uint32_t>(above) << f.mantissa) + below + (random < share ? 1 : 0);
  return sign | (code < f.largest ? code : f.largest);
}

PT_HOST_DEVICE inline uint32_t root_by_chance(const NarrowFormat& f, float square,
                                              uint32_t random) {
  const float root = std::sqrt(square);
  if (root != root) return f.nan;
  if (root >= f.largest_number) return f.largest;
  const uint32_t least = static_cast<uint32_t>(f.least) << 23;
  uint32_t exponent = __builtin_bit_cast(uint32_t, root) & 0x7F800000u;
  if (exponent < least) exponent = least;
  // In units of the last place all but the quotient is exact.
  const auto units =
      __builtin_bit_cast(float, (static_cast<uint32_t>(254 + f.mantissa) << 23) - exponent);
  const int below = static_cast<int>(root * units);
  const auto low = static_cast<float>(below);
  const float share = (square * units * units - low * low) / (2 * low + 1);
  const bool up = static_cast<float>(random >> 8) * 0x1p-24f < share;
  return ((exponent - least) >> (23 - f.mantissa)) + static_cast<uint32_t>(below) + (up ? 1 : 0);
}

template <class T>
PT_HOST_DEVICE uint32_t stored_code(const RoundByChanceArgs& a, const NarrowFormat& f, T value,
                                    uint32_t random) {
  const T scale = static_cast<T>(a.scale);
  const uint32_t code = a.root
                            ? root_by_chance(f, static_cast<float>(value * scale * scale), random)
                            : code_by_chance(f, static_cast<float>(value * scale), random);
  return a.positive && code == 0 && value > 0 ? 1 : code;
}

} // namespace pentatron::kernels
