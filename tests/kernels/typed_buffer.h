/// A buffer of any dtype that reads and writes doubles, for comparing kernels.
#pragma once

#include <cstddef>
#include <cstring>
#include <functional>
#include <random>
#include <vector>

#include <omp.h>

#include "pentatron/kernels/simd/scalar.h"

namespace pentatron::kernels::test {

class TypedBuffer {
 public:
  /// `n` elements; the first lies `skew` elements past an aligned address.
  TypedBuffer(DType dtype, int64_t n, int64_t skew = 0)
      : dtype_(dtype), n_(n), skew_(skew),
        bytes_(static_cast<size_t>(n + skew) * element_size(dtype)) {}

  DType dtype() const { return dtype_; }
  int64_t size() const { return n_; }
  void* data() { return bytes_.data() + static_cast<size_t>(skew_) * element_size(dtype_); }
  const void* data() const { return const_cast<TypedBuffer*>(this)->data(); }
  void* at(int64_t i) {
    return static_cast<std::byte*>(data()) + static_cast<size_t>(i) * element_size(dtype_);
  }

  double get(int64_t i) const {
    double value = 0;
    simd::with_type(
        dtype_, [&]<class T>(T) { value = simd::load<double>(static_cast<const T*>(data())[i]); });
    return value;
  }
  void set(int64_t i, double value) {
    simd::with_type(dtype_,
                    [&]<class T>(T) { static_cast<T*>(data())[i] = simd::store<T>(value); });
  }
  TypedBuffer& fill(const std::function<double(int64_t)>& f) {
    for (int64_t i = 0; i < n_; ++i) set(i, f(i));
    return *this;
  }
  TypedBuffer& fill_normal(uint64_t seed, double std = 1) {
    std::mt19937_64 generator(seed);
    std::normal_distribution<double> normal(0, std);
    return fill([&](int64_t) { return normal(generator); });
  }
  bool same_bits(const TypedBuffer& other) const {
    return n_ == other.n_ && dtype_ == other.dtype_ &&
           std::memcmp(data(), other.data(), static_cast<size_t>(n_) * element_size(dtype_)) == 0;
  }

 private:
  DType dtype_;
  int64_t n_;
  int64_t skew_;
  std::vector<std::byte> bytes_;
};

/// Half a unit in the last place of 1.
inline double unit_roundoff(DType dtype) {
  switch (dtype) {
  case DType::kFloat64:
    return 0x1p-53;
  case DType::kFloat32:
    return 0x1p-24;
  case DType::kBFloat16:
    return 0x1p-8;
  case DType::kFloat16:
    return 0x1p-11;
  }
  return 0;
}

/// Runs the rest of its scope with this many OpenMP threads.
class WithThreads {
 public:
  explicit WithThreads(int threads) : before_(omp_get_max_threads()) {
    omp_set_num_threads(threads);
  }
  ~WithThreads() { omp_set_num_threads(before_); }
  WithThreads(const WithThreads&) = delete;
  WithThreads& operator=(const WithThreads&) = delete;

 private:
  int before_;
};

} // namespace pentatron::kernels::test
