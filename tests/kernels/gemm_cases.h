/// Matrices and products for the tests of the GEMM.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "pentatron/kernels/gemm/gemm.h"

namespace pentatron::kernels::testing {

inline constexpr float kFloatNan = std::numeric_limits<float>::quiet_NaN();
inline constexpr float kFloatInf = std::numeric_limits<float>::infinity();

// Round to nearest even, written from the definition: the independent answer for conversions.
inline uint16_t bf16_bits(float x) {
  if (std::isnan(x)) return 0x7fc0;
  const auto bits = std::bit_cast<uint32_t>(x);
  const uint32_t kept = bits >> 16;
  const uint32_t rest = bits & 0xffff;
  return static_cast<uint16_t>(kept +
                               (rest > 0x8000 || (rest == 0x8000 && (kept & 1) != 0) ? 1 : 0));
}
inline float from_bf16(uint16_t x) {
  return std::bit_cast<float>(static_cast<uint32_t>(x) << 16);
}

inline uint16_t fp16_bits(float x) {
  const uint16_t sign = std::signbit(x) ? 0x8000 : 0;
  const float size = std::abs(x);
  if (std::isnan(x)) return 0x7e00;
  if (size >= 65520) return sign | 0x7c00;
  // In units of the last place: 1024 to 2048 of them, fewer below 2^-14. 2048 carries over.
  const int exponent = size < 0x1p-14F ? -14 : std::ilogb(size);
  const auto units = static_cast<int>(std::nearbyint(std::ldexp(size, 10 - exponent)));
  return static_cast<uint16_t>(sign | (((exponent + 14) << 10) + units));
}
inline float from_fp16(uint16_t x) {
  const int exponent = x >> 10 & 31, units = x & 1023;
  const float size = exponent == 31  ? (units != 0 ? kFloatNan : kFloatInf)
                     : exponent == 0 ? std::ldexp(static_cast<float>(units), -24)
                                     : std::ldexp(static_cast<float>(units + 1024), exponent - 25);
  return (x & 0x8000) != 0 ? -size : size;
}

/// A matrix stored as fp32, bf16 or fp16 with a margin: `pad` elements after each row, `shift`
/// bytes before the first.
class Matrix {
 public:
  Matrix(DType dtype, int64_t rows, int64_t columns, int64_t pad = 0, int64_t shift = 0)
      : dtype_(dtype), ld_(columns + pad), shift_(shift),
        bytes_(static_cast<size_t>(rows * (columns + pad)) * element_size(dtype) +
                   static_cast<size_t>(shift),
               std::byte{0xff}) {}
  void* data() { return bytes_.data() + shift_; }
  int64_t ld() const { return ld_; }
  float get(int64_t i, int64_t j) const {
    const std::byte* p =
        bytes_.data() + shift_ + static_cast<size_t>(i * ld_ + j) * element_size(dtype_);
    if (element_size(dtype_) == 2) {
      uint16_t x;
      std::memcpy(&x, p, 2);
      return dtype_ == DType::kFloat16 ? from_fp16(x) : from_bf16(x);
    }
    float x;
    std::memcpy(&x, p, 4);
    return x;
  }
  void set(int64_t i, int64_t j, float value) {
    std::byte* p = bytes_.data() + shift_ + static_cast<size_t>(i * ld_ + j) * element_size(dtype_);
    if (element_size(dtype_) == 2) {
      const uint16_t x = dtype_ == DType::kFloat16 ? fp16_bits(value) : bf16_bits(value);
      std::memcpy(p, &x, 2);
    } else {
      std::memcpy(p, &value, 4);
    }
  }
  void fill(int64_t rows, int64_t columns, uint64_t seed) {
    std::mt19937_64 generator(seed);
    std::normal_distribution<float> normal;
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < columns; ++j) set(i, j, normal(generator));
    }
  }
  const std::vector<std::byte>& bytes() const { return bytes_; }
  /// Takes the values of a matrix of the same form; stays where it is.
  void take(const Matrix& other) { std::ranges::copy(other.bytes_, bytes_.begin()); }

 private:
  DType dtype_;
  int64_t ld_;
  int64_t shift_;
  std::vector<std::byte> bytes_;
};

/// x, or its transpose if `turned`, as `rows` rows of `columns` doubles.
inline std::vector<double> widened(const Matrix& x, bool turned, int64_t rows, int64_t columns) {
  std::vector<double> result;
  result.reserve(static_cast<size_t>(rows * columns));
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < columns; ++j) result.push_back(turned ? x.get(j, i) : x.get(i, j));
  return result;
}

struct Problem {
  int64_t m, n, k;
  bool transpose_a = false;
  bool transpose_b = false;
  DType in = DType::kFloat32;
  DType out = DType::kFloat32;
  bool accumulate = false;
  bool bias = false;
  DType bias_dtype = DType::kFloat32;
  int64_t pad = 0;
  int64_t shift = 0;
};

inline std::string describe(const Problem& p) {
  return fmt::format("m={} n={} k={} ta={} tb={} {}->{} accumulate={} bias={} pad={} shift={}", p.m,
                     p.n, p.k, p.transpose_a, p.transpose_b, name(p.in), name(p.out), p.accumulate,
                     p.bias, p.pad, p.shift);
}

struct Data {
  Matrix a, b, c, bias;
  GemmArgs args;
};

inline Data make(const Problem& p, uint64_t seed = 1) {
  const int64_t ra = p.transpose_a ? p.k : p.m, ca = p.transpose_a ? p.m : p.k;
  const int64_t rb = p.transpose_b ? p.n : p.k, cb = p.transpose_b ? p.k : p.n;
  Data d{Matrix(p.in, ra, ca, p.pad, p.shift),
         Matrix(p.in, rb, cb, 2 * p.pad, p.shift),
         Matrix(p.out, p.m, p.n, 3 * p.pad, p.shift),
         Matrix(p.bias_dtype, 1, p.n, 0, p.shift),
         {}};
  d.a.fill(ra, ca, seed);
  d.b.fill(rb, cb, seed + 1);
  if (p.accumulate) d.c.fill(p.m, p.n, seed + 2); // otherwise C stays full of NaN (all bits set)
  d.bias.fill(1, p.n, seed + 3);
  d.args = {.m = p.m,
            .n = p.n,
            .k = p.k,
            .transpose_a = p.transpose_a,
            .transpose_b = p.transpose_b,
            .in_dtype = p.in,
            .out_dtype = p.out,
            .a = nullptr,
            .lda = d.a.ld(),
            .b = nullptr,
            .ldb = d.b.ld(),
            .c = nullptr,
            .ldc = d.c.ld(),
            .accumulate = p.accumulate,
            .bias = nullptr,
            .bias_dtype = p.bias_dtype};
  return d;
}

inline void attach(Data& d, bool bias) {
  d.args.a = d.a.data();
  d.args.b = d.b.data();
  d.args.c = d.c.data();
  d.args.bias = bias ? d.bias.data() : nullptr;
}

} // namespace pentatron::kernels::testing
