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
  uint32_t largest = 0x7F7F, nan = 0x7FC0; ///< codes
  float largest_number = 0x1.FEp127f;
};
PT_HOST_DEVICE constexpr NarrowFormat format_of(NarrowType type) {
  switch (type) {
  case NarrowType::kBFloat16:
    break;
  case NarrowType::kFloat16:
    return {10, 113, 16, 0x7BFF, 0x7E00, 65504};
  case NarrowType::kE4M3:
    return {3, 121, 8, 0x7E, 0x7F, 448};
  }
  return {};
}

// With __builtin_bit_cast, as in quantize/formats.h.

/// Philox counters of elements, and the bits that element g takes of its block.
PT_HOST_DEVICE constexpr uint64_t counter_of(uint64_t g) {
  return g / 128 * 16 + g % 16;
}
PT_HOST_DEVICE inline uint32_t half_of(uint64_t g, const uint32_t* words) {
  const uint64_t h = g % 128 / 16;
  return h < 4 ? words[h] & 0xFFFFu : words[h - 4] >> 16;
}

/// Whether a number that lies `rest` above the lower neighbour becomes the upper one, whose
/// distance is `gap`; `below` is the code of the lower one, or as odd. By chance, nothing is
/// rounded here.
PT_HOST_DEVICE inline bool goes_up(float rest, float gap, uint32_t below, bool by_chance,
                                   uint32_t half) {
  if (by_chance) return (static_cast<float>(half) + 0.5f) * 0x1p-16f * gap < rest;
  return rest > 0.5f * gap || (rest == 0.5f * gap && below % 2 != 0);
}

/// In bf16, which has the exponents of fp32: codes are upper halves, shares are lower ones.
PT_HOST_DEVICE inline uint32_t bfloat_code(float x, bool by_chance, uint32_t half) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, x), size = bits & 0x7FFFFFFFu;
  const uint32_t sign = bits >> 31 << 15;
  if (size >= 0x7F800000u) return sign | (size > 0x7F800000u ? 0x7FC0u : 0x7F80u);
  const uint32_t more = by_chance ? 0xFFFFu - half : 0x7FFFu + (size >> 16) % 2;
  const uint32_t code = (size + more) >> 16;
  return sign | (code < 0x7F7Fu ? code : 0x7F7Fu);
}

/// In the other types; `x` is the square of the number with `root`.
PT_HOST_DEVICE inline uint32_t narrow_code(const NarrowFormat& f, float x, bool root,
                                           bool by_chance, uint32_t half) {
  const float size = root ? std::sqrt(x) : std::fabs(x);
  const uint32_t sign = root ? 0 : __builtin_bit_cast(uint32_t, x) >> 31 << (f.width - 1);
  if (size != size) return sign | f.nan;
  if (size >= f.largest_number) return sign | f.largest;
  const uint32_t least = static_cast<uint32_t>(f.least) << 23;
  uint32_t exponent = __builtin_bit_cast(uint32_t, size) & 0x7F800000u;
  if (exponent < least) exponent = least;
  // In units of the last place, all is exact but the root.
  const auto units =
      __builtin_bit_cast(float, (static_cast<uint32_t>(254 + f.mantissa) << 23) - exponent);
  const auto below = static_cast<int>(size * units);
  const auto low = static_cast<float>(below);
  const bool squares = root && by_chance;
  const float rest = squares ? x * units * units - low * low : size * units - low;
  const uint32_t code = ((exponent - least) >> (23 - f.mantissa)) + static_cast<uint32_t>(below);
  return sign | (code + (goes_up(rest, squares ? 2 * low + 1 : 1, code, by_chance, half) ? 1 : 0));
}

/// What a code stands for.
PT_HOST_DEVICE inline float number_of(const NarrowFormat& f, uint32_t code) {
  const uint32_t sign = code >> (f.width - 1), size = code & ((1u << (f.width - 1)) - 1);
  uint32_t bits = (size << (23 - f.mantissa)) + (static_cast<uint32_t>(f.least - 1) << 23);
  if (size > f.largest) { // the next code is infinite, but in e4m3
    bits = f.mantissa != 3 && size == f.largest + 1 ? 0x7F800000u : 0x7FC00000u;
  } else if (f.mantissa != 7 && size < 1u << f.mantissa) {
    const auto last_place =
        __builtin_bit_cast(float, static_cast<uint32_t>(f.least - f.mantissa) << 23);
    bits = __builtin_bit_cast(uint32_t, static_cast<float>(size) * last_place);
  }
  return __builtin_bit_cast(float, bits | sign << 31);
}

template <class T>
PT_HOST_DEVICE T loaded_number(const LoadNarrowArgs& a, const NarrowFormat& f, uint32_t code) {
  const T number = static_cast<T>(number_of(f, code)) * static_cast<T>(1 / a.scale);
  return a.root ? number * number : number;
}

template <class T>
PT_HOST_DEVICE uint32_t stored_code(const StoreNarrowArgs& a, const NarrowFormat& f, T value,
                                    uint32_t half) {
  const T scale = static_cast<T>(a.scale);
  const auto x = static_cast<float>(a.root ? value * scale * scale : value * scale);
  const uint32_t code = a.type == NarrowType::kBFloat16
                            ? bfloat_code(x, a.by_chance, half)
                            : narrow_code(f, x, a.root, a.by_chance, half);
  return a.positive && code == 0 && value > 0 ? 1 : code;
}

} // namespace pentatron::kernels
