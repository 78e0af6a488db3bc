// bf16 and fp16 products by way of fp32 panels, against the scalar definition.
#include <gtest/gtest.h>

#include "pentatron/kernels/gemm/gemm.h"
#include "pentatron/kernels/gemm/gemm_simd.h"
#include "pentatron/kernels/gemm/gemm_widened.h"
#include "tests/kernels/array.h"

namespace pentatron::kernels {
namespace {

using testing::Array;

struct Shape {
  int64_t m, n, k;
};

class Widened : public ::testing::TestWithParam<std::tuple<Shape, DType>> {};

/// Every transposition, output, accumulation and bias, two products at once, with margins between
/// rows.
TEST_P(Widened, AgreesWithTheReference) {
  if (!cpu_features().avx2) GTEST_SKIP() << "needs AVX2";
  const auto [m, n, k] = std::get<0>(GetParam());
  const DType half = std::get<1>(GetParam());
  const double rounding = half == DType::kFloat16 ? 0x1p-10 : 0x1p-7;
  const bool long_sum = k > 10'000;
  for (int bits = 0; bits < 32; ++bits) {
    if (long_sum && bits != 5 && bits != 10) continue; // the reference is slow
    const bool ta = (bits & 1) != 0, tb = (bits & 2) != 0, accumulate = (bits & 4) != 0;
    const DType out = (bits & 8) != 0 ? half : DType::kFloat32;
    GemmArgs g{.m = m,
               .n = n,
               .k = k,
               .transpose_a = ta,
               .transpose_b = tb,
               .in_dtype = half,
               .out_dtype = out,
               .lda = (ta ? m : k) + 3,
               .ldb = (tb ? k : n) + 1,
               .ldc = n + 2,
               .accumulate = accumulate,
               .batch = long_sum ? 1 : 2};
    g.stride_a = (ta ? k : m) * g.lda;
    g.stride_b = (tb ? n : k) * g.ldb;
    g.stride_c = m * g.ldc;
    const Array a = Array::random(half, 2 * g.stride_a, 1);
    const Array b = Array::random(half, 2 * g.stride_b, 2);
    const Array bias = Array::random(half, n, 3);
    Array c = Array::random(out, 2 * g.stride_c, 4);
    Array expected = c;
    g.a = a.data();
    g.b = b.data();
    if ((bits & 16) != 0) {
      g.bias = bias.data();
      g.bias_dtype = half;
    }
    g.c = c.data();
    gemm_detail::multiply_widened(g, cpu_features().avx512 ? gemm_detail::run_avx512
                                                           : gemm_detail::run_avx2);
    g.c = expected.data();
    gemm_reference(g, {});
    testing::expect_close(c, expected, out == half ? rounding : 1e-5,
                          (out == half ? rounding : 1e-5) * std::sqrt(static_cast<double>(k)),
                          fmt::format("variant {}", bits));
  }
}

// With k = 33,000 panels have 64 rows or columns, so A and B both have several.
INSTANTIATE_TEST_SUITE_P(Shapes, Widened,
                         ::testing::Combine(::testing::Values(Shape{1, 1, 1}, Shape{5, 33, 17},
                                                              Shape{66, 66, 33'000},
                                                              Shape{1, 200, 700}),
                                            ::testing::Values(DType::kBFloat16, DType::kFloat16)));

} // namespace
} // namespace pentatron::kernels
