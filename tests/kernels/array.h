/// Arrays of any dtype for the tests of kernels, filled and read as double; the entries of an
/// operator; a number of threads.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstring>
#include <functional>
#include <limits>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <omp.h>

#include "pentatron/base/philox.h"
#include "pentatron/kernels/common/scalar.h"
#include "tests/kernels/guarded_memory.h"

namespace pentatron::kernels::testing {

/// Ends at a page that nobody may touch. With `aligned` the first element lies at a multiple of 64
/// bytes and the end may be up to 63 bytes before that page; else it is aligned for its type, and
/// for a vector only by chance of its size.
class Array {
 public:
  Array(DType dtype, int64_t size, double value = 0.0, bool aligned = false)
      : dtype_(dtype), size_(size), memory_(aligned ? (size * element_size(dtype) + 63) / 64 * 64
                                                    : size * element_size(dtype)) {
    fill(value);
  }
  static Array random(DType dtype, int64_t size, uint64_t seed, double scale = 1.0,
                      double shift = 0.0) {
    Array a(dtype, size);
    a.fill_random(seed, scale, shift);
    return a;
  }
  static Array of(DType dtype, const std::vector<double>& values) {
    Array a(dtype, static_cast<int64_t>(values.size()));
    a.fill([&](int64_t i) { return values[i]; });
    return a;
  }

  void* data() { return at(0); }
  const void* data() const { return const_cast<Array*>(this)->data(); }
  void* at(int64_t i) { return memory_.data() + i * element_size(dtype_); }
  int64_t size() const { return size_; }
  DType dtype() const { return dtype_; }

  double operator[](int64_t i) const { return load_as_double(data(), dtype_, i); }
  void set(int64_t i, double value) { store_from_double(data(), dtype_, i, value); }
  void fill(double value) {
    fill([&](int64_t) { return value; });
  }
  void fill(const std::function<double(int64_t)>& f) {
    for (int64_t i = 0; i < size_; ++i) set(i, f(i));
  }
  /// Normal numbers of Philox.
  void fill_random(uint64_t seed, double scale = 1.0, double shift = 0.0) {
    const Stream stream(seed, "test");
    fill([&](int64_t i) { return shift + scale * stream.normal(static_cast<uint64_t>(i)); });
  }
  bool same_bits(const Array& other) const {
    return size_ == other.size_ && dtype_ == other.dtype_ &&
           std::memcmp(data(), other.data(), size_ * element_size(dtype_)) == 0;
  }

 private:
  DType dtype_;
  int64_t size_;
  GuardedMemory memory_;
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

/// The entries of an operator that can run `args` here.
template <class Args>
std::vector<Entry<Args>> entries_for(std::span<const Entry<Args>> entries, const Args& args) {
  std::vector<Entry<Args>> usable;
  for (const Entry<Args>& entry : entries)
    if (entry.refuse(args, {}).empty()) usable.push_back(entry);
  return usable;
}
/// The same, the reference excluded.
template <class Args>
std::vector<Entry<Args>> fast_entries(std::span<const Entry<Args>> entries, const Args& args) {
  std::vector<Entry<Args>> fast = entries_for(entries, args);
  std::erase_if(fast, [](const Entry<Args>& entry) { return entry.name == "reference"; });
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
