/// Element types of the CPU kernels, their accumulate types, and the switch from a DType to a type.
/// device.cuh is the same for CUDA.
///
/// bf16 and fp16 are storage only: arithmetic happens in float. Conversion rounds to nearest, ties
/// to even; NaN stays NaN.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include "pentatron/kernels/contract.h"

namespace pentatron::kernels {

struct bf16 {
  uint16_t bits;
};
struct fp16 {
  uint16_t bits;
};

template <class T> using acc_t = std::conditional_t<std::is_same_v<T, double>, double, float>;

inline double to_acc(double x) {
  return x;
}
inline float to_acc(float x) {
  return x;
}
inline float to_acc(bf16 x) {
  return std::bit_cast<float>(uint32_t{x.bits} << 16);
}
inline float to_acc(fp16 x) {
  const uint32_t sign = uint32_t{x.bits & 0x8000u} << 16;
  const uint32_t magnitude = x.bits & 0x7FFFu;
  if (magnitude >= 0x7C00u)
    return std::bit_cast<float>(sign | 0x7F800000u | (magnitude & 0x3FFu) << 13);
  // The exponent is rebiased by a multiplication, which also makes subnormals exact.
  const float value = std::bit_cast<float>(magnitude << 13) * 0x1p112f;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(value) | sign);
}

template <class T> T from_acc(acc_t<T> x) {
  if constexpr (std::is_same_v<T, bf16>) {
    const uint32_t u = std::bit_cast<uint32_t>(x);
    if ((u & 0x7FFFFFFFu) > 0x7F800000u) return {static_cast<uint16_t>(u >> 16 | 0x40u)};
    return {static_cast<uint16_t>((u + 0x7FFFu + (u >> 16 & 1u)) >> 16)};
  } else if constexpr (std::is_same_v<T, fp16>) {
    const uint32_t u = std::bit_cast<uint32_t>(x);
    const auto sign = static_cast<uint16_t>(u >> 16 & 0x8000u);
    const uint32_t magnitude = u & 0x7FFFFFFFu;
    if (magnitude > 0x7F800000u)
      return {static_cast<uint16_t>(sign | 0x7E00u | (magnitude >> 13 & 0x3FFu))};
    if (magnitude >= 0x477FF000u) return {static_cast<uint16_t>(sign | 0x7C00u)};
    if (magnitude < 0x38800000u) { // subnormal: adding 0.5 leaves the rounded bits at the bottom
      const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
      return {static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3F000000u))};
    }
    const uint32_t rounded = magnitude + 0xFFFu + (magnitude >> 13 & 1u) - 0x38000000u;
    return {static_cast<uint16_t>(sign | rounded >> 13)};
  } else {
    return x;
  }
}

/// Of a float, one that from_acc<bf16>() rounds alike, but ties away from zero.
inline float ties_away(float x) {
  const uint32_t u = std::bit_cast<uint32_t>(x);
  return std::bit_cast<float>(u | (u >> 15 & 1u));
}

template <class T> double to_double(T x) {
  return to_acc(x);
}
template <class T> T from_double(double x) {
  return from_acc<T>(static_cast<acc_t<T>>(x));
}

/// Calls f(T{}) with the element type T of `dtype`.
template <class F> decltype(auto) visit_dtype(DType dtype, F&& f) {
  switch (dtype) {
  case DType::kFloat64:
    return f(double{});
  case DType::kBFloat16:
    return f(bf16{});
  case DType::kFloat16:
    return f(fp16{});
  case DType::kFloat32:
    break;
  }
  return f(float{});
}

/// The same for what accumulates in float: kFloat64 counts as kFloat32, so callers refuse it first.
template <class F> void visit_float_dtype(DType dtype, F&& f) {
  visit_dtype(dtype,
              [&]<class T>(T) { f(std::conditional_t<std::is_same_v<T, double>, float, T>{}); });
}

/// Calls f(double{}) for kFloat64, else f(float{}).
template <class F> void visit_acc_dtype(DType dtype, F&& f) {
  if (dtype == DType::kFloat64)
    f(double{});
  else
    f(float{});
}

/// Element i of an array at any address.
inline double load_as_double(const void* p, DType dtype, int64_t i) {
  return visit_dtype(dtype, [&]<class T>(T x) {
    std::memcpy(&x, static_cast<const char*>(p) + i * int64_t{sizeof x}, sizeof x);
    return to_double(x);
  });
}
inline void store_from_double(void* p, DType dtype, int64_t i, double value) {
  visit_dtype(dtype, [&]<class T>(T) {
    const T x = from_double<T>(value);
    std::memcpy(static_cast<char*>(p) + i * int64_t{sizeof x}, &x, sizeof x);
  });
}

/// A short vector (weight, bias) in the accumulate type A, `plus` added; `missing` everywhere if
/// `p` is null.
template <class A>
std::vector<A> widen(const void* p, DType dtype, int64_t n, A missing, A plus = 0) {
  if (p == nullptr) return std::vector<A>(n, missing);
  std::vector<A> out(n);
  visit_dtype(dtype, [&]<class T>(T) {
    for (int64_t i = 0; i < n; ++i)
      out[i] = static_cast<A>(to_acc(static_cast<const T*>(p)[i])) + plus;
  });
  return out;
}

} // namespace pentatron::kernels
