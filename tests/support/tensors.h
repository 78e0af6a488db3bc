/// Tensors for tests: random numbers addressed by element, and comparison with a readable failure.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace pentatron::test {

/// Standard normal numbers of Stream(seed, "test"), element by element; rounded (to whole numbers
/// within +-40 for integer types).
at::Tensor randn(at::IntArrayRef shape, uint64_t seed, at::ScalarType dtype = at::kDouble);

struct Tolerance {
  double rtol = 0;
  double atol = 0;
};

/// Non-fatal failure, with the first differing element, unless shapes and dtypes agree and
/// |actual - expected| <= atol + rtol * |expected| everywhere; NaN equals NaN.
void expect_close(const at::Tensor& actual, const at::Tensor& expected, Tolerance tolerance = {});

} // namespace pentatron::test
