#include "tests/support/tensors.h"

#include "pentatron/base/philox.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

namespace pentatron::test {

at::Tensor randn(at::IntArrayRef shape, uint64_t seed, at::ScalarType dtype) {
  const at::NoGradGuard no_grad;
  at::Tensor result = at::empty(shape, at::kDouble);
  const Stream stream(seed, "test");
  double* values = result.mutable_data_ptr<double>();
  for (int64_t i = 0; i < result.numel(); ++i) values[i] = stream.normal(static_cast<uint64_t>(i));
  if (!at::isFloatingType(dtype)) result = (result * 8).round().clamp(-40, 40);
  return result.to(dtype);
}

void expect_close(const at::Tensor& actual, const at::Tensor& expected, Tolerance tolerance) {
  ASSERT_TRUE(actual.defined() && expected.defined()) << "a tensor is undefined";
  ASSERT_EQ(actual.sizes(), expected.sizes());
  ASSERT_EQ(actual.scalar_type(), expected.scalar_type());
  if (actual.numel() == 0) return;
  const at::NoGradGuard no_grad;
  const at::Tensor close =
      at::isclose(actual.detach().to(at::kDouble), expected.detach().to(at::kDouble),
                  tolerance.rtol, tolerance.atol, /*equal_nan=*/true)
          .flatten();
  const int64_t wrong = close.numel() - close.sum().item<int64_t>();
  if (wrong == 0) return;
  const int64_t first = close.to(at::kInt).argmin().item<int64_t>();
  const auto value = [&](const at::Tensor& x) {
    return x.detach().flatten()[first].to(at::kDouble).item<double>();
  };
  ADD_FAILURE() << wrong << " of " << close.numel() << " elements of " << actual.sizes()
                << " differ; element " << first << " is " << testing::PrintToString(value(actual))
                << ", expected " << testing::PrintToString(value(expected)) << " (rtol "
                << tolerance.rtol << ", atol " << tolerance.atol << ")";
}

} // namespace pentatron::test
