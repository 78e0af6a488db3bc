/// Numbers in narrow types, rounded up or down by chance: the mean of what is stored is the number,
/// so a running mean that changes by less than its type can follow does so on average.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "pentatron/kernels/contract.h"

namespace pentatron::kernels {

enum class NarrowType : uint8_t { kBFloat16, kFloat16, kE4M3 };

/// Rows of `cols` elements. x = scale value lies between two neighbours of the type; the share is
/// its distance from the one nearer to zero, divided by their distance. x becomes the other one if
///   word < share 2^32, rounded down
/// `root`: the type holds the root of y = scale^2 value, the share is that of y between the squares
/// of the neighbours, rounded to fp32, and the condition is (word >> 8) 2^-24 < share: on average,
/// the square of what is stored is y. Only for kE4M3 and values >= 0.
///
/// Element (r, c) has the number g = first + r first_step + c, whoever computes it, and the word
///   philox({16 (g / 64) + g % 16, step}, key)[g % 64 / 16]
/// so that 16 counters side by side give 64 neighbours; counter and step have 64 bits each.
///
/// What is beyond the largest number becomes it; so do infinities, but in kBFloat16. NaN stays NaN.
/// Doubles are rounded to fp32 first.
struct RoundByChanceArgs {
  DType dtype = DType::kFloat32; ///< of the values: kFloat32 or kFloat64
  NarrowType type = NarrowType::kBFloat16;
  int64_t rows = 1;
  int64_t cols = 0;
  int64_t stride = 0; ///< of rows, of both arrays
  const void* value = nullptr;
  void* stored = nullptr; ///< out
  double scale = 1;       ///< a power of two
  bool root = false;
  bool positive = false;            ///< what is above zero becomes at least the smallest number
  std::array<uint32_t, 2> key = {}; ///< Stream::key()
  uint64_t step = 0;
  int64_t first = 0;
  int64_t first_step = 0;
};
/// Throws ShapeError for types of values and for roots that it does not know.
void round_by_chance(const RoundByChanceArgs& args, const Context& context = {});
std::span<const Entry<RoundByChanceArgs>> round_by_chance_entries();

} // namespace pentatron::kernels
