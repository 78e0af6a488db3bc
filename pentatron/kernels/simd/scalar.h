/// Element types as C++ types, and the step from a DType at run time to one of them at compile
/// time.
#pragma once

#include <bit>
#include <cstdint>
#include <type_traits>

#include "pentatron/kernels/contract.h"

namespace pentatron::kernels::simd {

struct BFloat16 {
  uint16_t bits;
};
struct Float16 {
  uint16_t bits;
};

/// The type that holds sums and statistics of T.
template <class T> using AccOf = std::conditional_t<std::is_same_v<T, double>, double, float>;

inline float to_float(BFloat16 x) {
  return std::bit_cast<float>(uint32_t{x.bits} << 16);
}
inline float to_float(Float16 x) {
  return static_cast<float>(std::bit_cast<_Float16>(x.bits));
}

/// Rounds to nearest even; a NaN stays a (quiet) NaN.
inline BFloat16 to_bfloat16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  if ((bits & 0x7fffffffU) > 0x7f800000U) {
    return {static_cast<uint16_t>((bits >> 16) | 0x40U)};
  }
  return {static_cast<uint16_t>((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16)};
}
inline Float16 to_float16(float x) {
  return {std::bit_cast<uint16_t>(static_cast<_Float16>(x))};
}

template <class Acc, class T> Acc load(T x) {
  if constexpr (std::is_floating_point_v<T>) {
    return static_cast<Acc>(x);
  } else {
    return static_cast<Acc>(to_float(x));
  }
}
template <class T, class Acc> T store(Acc x) {
  if constexpr (std::is_same_v<T, BFloat16>) {
    return to_bfloat16(static_cast<float>(x));
  } else if constexpr (std::is_same_v<T, Float16>) {
    return to_float16(static_cast<float>(x));
  } else {
    return static_cast<T>(x);
  }
}

/// Calls f(T{}) with the C++ type of `dtype`.
template <class F> void with_type(DType dtype, F&& f) {
  switch (dtype) {
  case DType::kFloat64:
    return f(double{});
  case DType::kFloat32:
    return f(float{});
  case DType::kBFloat16:
    return f(BFloat16{});
  case DType::kFloat16:
    return f(Float16{});
  }
}
/// Calls f(Acc{}) with double or float.
template <class F> void with_acc_type(DType dtype, F&& f) {
  if (dtype == DType::kFloat64) {
    f(double{});
  } else {
    f(float{});
  }
}

} // namespace pentatron::kernels::simd
