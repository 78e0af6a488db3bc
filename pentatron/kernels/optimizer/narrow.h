/// Numbers in narrow types, rounded to the nearest, or up or down by chance: then the mean of what
/// is stored is the number, so a running mean that changes by less than its type can follow does so
/// on average.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "pentatron/kernels/contract.h"

namespace pentatron::kernels {

enum class NarrowType : uint8_t { kBFloat16, kFloat16, kE4M3 };

/// Rows of `cols` elements. x = scale value lies between two neighbours of the type; the share is
/// its distance from the one nearer to zero, divided by their distance. x becomes the other one
///   to the nearest: if share > 1/2, or is 1/2 and the first code is odd
///   by chance:      if (half + 1/2) 2^-16 < share, so with that probability, to 2^-17
/// `root`: the type holds the root of y = scale^2 value, and the share is that of the root rounded
/// to fp32, but by chance that of y between the squares of the neighbours: on average, the square
/// of what is stored is y. Only for kE4M3 and values >= 0.
///
/// Element (r, c) has the number g = first + r first_step + c, whoever computes it. Its `half` are
/// 16 bits of word h % 4 of
///   philox({16 (g / 128) + g % 16, step}, key),  h = g % 128 / 16,
/// the low ones if h < 4, so that 16 counters side by side give 128 neighbours; counter and step
/// have 64 bits each.
///
/// What is beyond the largest number becomes it; so do infinities, but in kBFloat16. NaN stays NaN.
/// Doubles are rounded to fp32 first.
struct StoreNarrowArgs {
  DType dtype = DType::kFloat32; ///< of the values: kFloat32 or kFloat64
  NarrowType type = NarrowType::kBFloat16;
  int64_t rows = 1;
  int64_t cols = 0;
  int64_t stride = 0; ///< of rows, of both arrays
  const void* value = nullptr;
  void* stored = nullptr; ///< out
  double scale = 1;       ///< a power of two
  bool root = false;
  bool positive = false; ///< what is above zero becomes at least the smallest number
  bool by_chance = false;
  std::array<uint32_t, 2> key = {}; ///< Stream::key()
  uint64_t step = 0;
  int64_t first = 0;
  int64_t first_step = 0;
};
/// Throws ShapeError for types of values and for roots that it does not know.
void store_narrow(const StoreNarrowArgs& args, const Context& context = {});
std::span<const Entry<StoreNarrowArgs>> store_narrow_entries();

/// value = number / scale, or its square with `root`.
struct LoadNarrowArgs {
  DType dtype = DType::kFloat32; ///< of the values: kFloat32 or kFloat64
  NarrowType type = NarrowType::kBFloat16;
  int64_t n = 0;
  const void* stored = nullptr;
  void* value = nullptr; ///< out
  double scale = 1;      ///< a power of two
  bool root = false;
};
/// Throws ShapeError for types of values that it does not know.
void load_narrow(const LoadNarrowArgs& args, const Context& context = {});
std::span<const Entry<LoadNarrowArgs>> load_narrow_entries();

} // namespace pentatron::kernels
