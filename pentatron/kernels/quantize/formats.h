/// The small number formats of low-precision training, to the bit.
///
/// e4m3 is e4m3fn: bias 7, largest 448, NaN 0x7F and 0xFF, no infinity. e5m2 is IEEE-like: bias 15,
/// largest 57344. e2m1 has the values 0, 0.5, 1, 1.5, 2, 3, 4, 6 and the sign in bit 3. e8m0 is
/// 2^(byte - 127), 255 is NaN. Sources: OCP 8-bit floating point specification (OFP8), OCP
/// microscaling formats (MX) 1.0.
#pragma once

#include <bit>
#include <cstdint>
#include <limits>

#include "pentatron/kernels/common/host_device.h"

namespace pentatron::kernels {

/// A sign, an exponent and a mantissa.
struct CodeFormat {
  int mantissa = 3;
  int bias = 7;
  float largest = 448;
  uint8_t sign = 0x80;
  uint8_t nan = 0x7F; ///< the code of NaN; e2m1 has none and takes its largest number
  bool has_nan = true;

  PT_HOST_DEVICE constexpr int min_exponent() const { return 1 - bias; } ///< of normal numbers
};
inline constexpr CodeFormat kE4M3 = {};
inline constexpr CodeFormat kE5M2 = {.mantissa = 2, .bias = 15, .largest = 57344};
inline constexpr CodeFormat kE2M1 = {
    .mantissa = 1, .bias = 1, .largest = 6, .sign = 0x08, .nan = 0x07, .has_nan = false};

// With __builtin_bit_cast where CUDA kernels call, for which std::bit_cast is no function.

/// 2^n as fp32, for n in [-127, 127].
PT_HOST_DEVICE constexpr float power_of_two(int n) {
  return __builtin_bit_cast(float, n == -127 ? 0x00400000u : static_cast<uint32_t>(n + 127) << 23);
}

/// The number of the format nearest to x, ties to the even code; beyond the largest, the largest
/// with the sign. NaN stays NaN, in a format without it it is the largest number.
PT_HOST_DEVICE inline float rounded_to(const CodeFormat& format, float x) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, x), sign = bits & 0x80000000u;
  float size = __builtin_bit_cast(float, bits ^ sign);
  if (size != size) return format.has_nan ? x : format.largest;
  if (size > format.largest) size = format.largest;
  // Adding a number whose last bit is worth one step of the format rounds; taking it away is exact.
  const uint32_t least = static_cast<uint32_t>(format.min_exponent() + 127) << 23;
  const uint32_t exponent = __builtin_bit_cast(uint32_t, size) & 0x7F800000u;
  const auto shift =
      __builtin_bit_cast(float, (exponent > least ? exponent : least) +
                                    (static_cast<uint32_t>(23 - format.mantissa) << 23));
  const float sum = size + shift;
  return __builtin_bit_cast(float, __builtin_bit_cast(uint32_t, sum - shift) | sign);
}

/// The code of a number that the format has.
PT_HOST_DEVICE inline uint8_t code_of(const CodeFormat& format, float value) {
  if (value != value) return format.nan;
  const uint32_t bits = __builtin_bit_cast(uint32_t, value);
  const auto sign = static_cast<uint8_t>(bits >> 31 != 0 ? format.sign : 0);
  const float size = __builtin_bit_cast(float, bits & 0x7FFFFFFFu);
  if (size < power_of_two(format.min_exponent())) // subnormal: a number of steps
    return static_cast<uint8_t>(
        sign | static_cast<uint8_t>(size * power_of_two(format.mantissa - format.min_exponent())));
  const uint32_t code = ((bits & 0x7FFFFFFFu) >> (23 - format.mantissa)) -
                        (static_cast<uint32_t>(127 - format.bias) << format.mantissa);
  return static_cast<uint8_t>(sign | code);
}

/// The number of a code.
inline float value_of(const CodeFormat& format, uint8_t code) {
  const uint32_t size = code & static_cast<uint32_t>(format.sign - 1);
  const uint32_t exponent = size >> format.mantissa, rest = size & ((1u << format.mantissa) - 1);
  float value = 0;
  if (exponent == 0) {
    value = static_cast<float>(rest) * power_of_two(format.min_exponent() - format.mantissa);
  } else {
    value = std::bit_cast<float>((exponent + static_cast<uint32_t>(127 - format.bias)) << 23 |
                                 rest << (23 - format.mantissa));
  }
  if (format.has_nan && value > format.largest) // e5m2 has an infinity, which no cast gives
    value = format.mantissa == 2 && rest == 0 ? std::numeric_limits<float>::infinity()
                                              : std::numeric_limits<float>::quiet_NaN();
  return (code & format.sign) != 0 ? -value : value;
}

/// The value of an e8m0 byte.
inline float value_of_e8m0(uint8_t byte) {
  return byte == 255 ? std::numeric_limits<float>::quiet_NaN() : power_of_two(byte - 127);
}

} // namespace pentatron::kernels
