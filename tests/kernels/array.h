/// Arrays of any dtype for the tests of kernels: filled and read as double, at an address that is
/// not aligned on purpose.
#pragma once

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <omp.h>

#include "pentatron/base/philox.h"
#include "pentatron/kernels/common/scalar.h"

namespace pentatron::kernels::testing {

class Array {
 public:
  Array(DType dtype, int64_t size, double value = 0.0)
      : dtype_(dtype), size_(size), bytes_((size + 1) * element_size(dtype) + 64) {
    // One element past a multiple of 64: aligned for the type, for no vector.
    const auto address = reinterpret_cast<uintptr_t>(bytes_.data());
    offset_ = (64 - address % 64) % 64 + element_size(dtype);
    for (int64_t i = 0; i < size; ++i) set(i, value);
  }
  static Array random(DType dtype, int64_t size, uint64_t seed, double scale = 1.0,
                      double shift = 0.0) {
    Array a(dtype, size);
    const Stream stream(seed, "test");
    for (int64_t i = 0; i < size; ++i)
      a.set(i, shift + scale * stream.normal(static_cast<uint64_t>(i)));
    return a;
  }
  static Array of(DType dtype, const std::vector<double>& values) {
    Array a(dtype, static_cast<int64_t>(values.size()));
    for (int64_t i = 0; i < a.size(); ++i) a.set(i, values[i]);
    return a;
  }

  void* data() { return bytes_.data() + offset_; }
  const void* data() const { return bytes_.data() + offset_; }
  int64_t size() const { return size_; }
  DType dtype() const { return dtype_; }

  double operator[](int64_t i) const {
    return visit_dtype(dtype_, [&]<class T>(std::type_identity<T>) {
      return static_cast<double>(to_acc(static_cast<const T*>(data())[i]));
    });
  }
  void set(int64_t i, double value) {
    visit_dtype(dtype_, [&]<class T>(std::type_identity<T>) {
      static_cast<T*>(data())[i] = from_acc<T>(static_cast<acc_t<T>>(value));
    });
  }
  bool same_bits(const Array& other) const {
    return size_ == other.size_ &&
           std::memcmp(data(), other.data(), size_ * element_size(dtype_)) == 0;
  }

  Array(const Array& other) : Array(other.dtype_, other.size_) {
    std::memcpy(data(), other.data(), size_ * element_size(dtype_));
  }
  Array& operator=(const Array&) = delete;

 private:
  DType dtype_;
  int64_t size_;
  std::vector<std::byte> bytes_;
  size_t offset_ = 0;
};

/// One step of rounding of `dtype` relative to the value.
inline double epsilon(DType dtype) {
  switch (dtype) {
  case DType::kFloat64:
    return 0x1p-52;
  case DType::kFloat32:
    return 0x1p-23;
  case DType::kBFloat16:
    return 0x1p-7;
  case DType::kFloat16:
    return 0x1p-10;
  }
  return 0;
}

/// Every |a - b| <= rtol |b| + atol; NaN equals NaN and infinities equal themselves.
inline void expect_close(const Array& a, const Array& b, double rtol, double atol,
                         const std::string& what = "") {
  ASSERT_EQ(a.size(), b.size()) << what;
  for (int64_t i = 0; i < a.size(); ++i) {
    if (std::isnan(a[i]) && std::isnan(b[i])) continue;
    if (a[i] == b[i]) continue;
    ASSERT_LE(std::abs(a[i] - b[i]), rtol * std::abs(b[i]) + atol)
        << what << ": element " << i << " is " << a[i] << ", expected " << b[i];
  }
}

/// The entries of an operator that can run `args` here, the reference excluded.
template <class Args>
std::vector<Entry<Args>> fast_entries(std::span<const Entry<Args>> entries, const Args& args) {
  std::vector<Entry<Args>> fast;
  for (const Entry<Args>& entry : entries)
    if (entry.name != "reference" && entry.refuse(args, {}).empty()) fast.push_back(entry);
  return fast;
}
template <class Args> Entry<Args> reference_of(std::span<const Entry<Args>> entries) {
  for (const Entry<Args>& entry : entries)
    if (entry.name == "reference") return entry;
  throw std::logic_error("no reference entry");
}

/// Runs f with `threads` OpenMP threads.
inline void with_threads(int threads, const std::function<void()>& f) {
  const int before = omp_get_max_threads();
  omp_set_num_threads(threads);
  f();
  omp_set_num_threads(before);
}

inline constexpr double kInf = std::numeric_limits<double>::infinity();
inline constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
inline constexpr DType kAllTypes[] = {DType::kFloat64, DType::kFloat32, DType::kBFloat16,
                                      DType::kFloat16};
inline constexpr DType kFastTypes[] = {DType::kFloat32, DType::kBFloat16, DType::kFloat16};

} // namespace pentatron::kernels::testing
