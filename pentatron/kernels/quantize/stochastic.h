/// Stochastic rounding to a small format: up or down with probabilities that make the mean exact.
///
/// Random numbers have addresses: element (row, column) of a tensor is rounded by the number of
/// (row_ids[row], col_ids[column]) in the stream of `key`, whoever computes it.
#pragma once

#include <array>
#include <cstdint>

#include "pentatron/base/philox.h"
#include "pentatron/kernels/quantize/formats.h"

namespace pentatron::kernels {

struct Stochastic {
  std::array<uint32_t, 2> key{};    ///< Stream::key()
  const int64_t* row_ids = nullptr; ///< [rows]; null: numbers of the rows
  const int64_t* col_ids = nullptr; ///< [cols]; the same for columns
};

/// 16 random bits of (row, col). Eight neighbouring columns, from a multiple of eight, share a
/// block of Philox; the even column has the low half of a word.
inline uint32_t random_bits_of(const Stochastic& s, int64_t row, int64_t col) {
  const auto r = static_cast<uint64_t>(s.row_ids != nullptr ? s.row_ids[row] : row);
  const auto c = static_cast<uint64_t>(s.col_ids != nullptr ? s.col_ids[col] : col);
  const PhiloxBlock bits =
      philox4x32({static_cast<uint32_t>(r), static_cast<uint32_t>(r >> 32),
                  static_cast<uint32_t>(c / 8), static_cast<uint32_t>(c / 8 >> 32)},
                 s.key);
  const uint32_t word = bits[c % 8 / 2];
  return c % 2 == 0 ? word & 0xFFFFu : word >> 16;
}

/// A uniform number in (0, 1), in steps of 2^-16, of 16 random bits.
PT_HOST_DEVICE inline float uniform_of_bits(uint32_t bits) {
  return (static_cast<float>(bits) + 0.5f) * 0x1p-16f;
}
/// That of (row, col).
inline float uniform_of(const Stochastic& s, int64_t row, int64_t col) {
  return uniform_of_bits(random_bits_of(s, row, col));
}

/// One of the two numbers of the format around x, the upper with the share of the way to it;
/// `uniform` decides. Beyond the largest: the largest.
PT_HOST_DEVICE inline float rounded_stochastically(const CodeFormat& format, float x,
                                                   float uniform) {
  const float size = x < 0 ? -x : x;
  if (!(size < format.largest)) return rounded_to(format, x);
  const uint32_t least = static_cast<uint32_t>(format.min_exponent() + 127) << 23;
  const uint32_t exponent = __builtin_bit_cast(uint32_t, size) & 0x7F800000u;
  const float step = __builtin_bit_cast(float, exponent > least ? exponent : least) *
                     power_of_two(-format.mantissa);
  const float ratio = size / step, below = static_cast<float>(static_cast<int>(ratio));
  const float result = (below + (ratio - below > uniform ? 1.0f : 0.0f)) * step;
  return x < 0 ? -result : result;
}

} // namespace pentatron::kernels
