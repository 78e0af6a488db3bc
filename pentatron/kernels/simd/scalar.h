/// Loads and stores between element types and any arithmetic type, and the switch from a DType to a
/// value of its type.
#pragma once

#include <type_traits>

#include "pentatron/kernels/common/scalar.h"

namespace pentatron::kernels::simd {

template <class Acc, class T> Acc load(T x) {
  return static_cast<Acc>(to_acc(x));
}
template <class T, class Acc> T store(Acc x) {
  return from_acc<T>(static_cast<acc_t<T>>(x));
}

/// Calls f(T{}) with the C++ type of `dtype`.
template <class F> void with_type(DType dtype, F&& f) {
  visit_dtype(dtype, [&]<class T>(std::type_identity<T>) { f(T{}); });
}
/// Calls f(double{}) or f(float{}).
template <class F> void with_acc_type(DType dtype, F&& f) {
  if (dtype == DType::kFloat64) {
    f(double{});
  } else {
    f(float{});
  }
}

} // namespace pentatron::kernels::simd
