// LibTorch's grouped product, as GPUs run it, against a product for each matrix.
#include "pentatron/nn/ops/rows.h"

#include <gtest/gtest.h>

#include <ATen/ATen.h>

namespace pentatron::nn {
namespace {

std::vector<int32_t> numbers(const at::Tensor& ends) {
  const auto* const p = ends.const_data_ptr<int32_t>();
  return {p, p + ends.numel()};
}

TEST(Ends, AreThoseOfRowsSideBySide) {
  EXPECT_EQ(numbers(ends_of({{0, 0, 3}, {2, 3, 5}}, 4, 8)), (std::vector<int32_t>{3, 3, 8, 8}));
  EXPECT_EQ(numbers(ends_of({{1, 0, 2}, {2, 2, 0}, {3, 2, 1}}, 4, 3)),
            (std::vector<int32_t>{0, 2, 2, 3}));
}

TEST(Ends, DoNotExistForOtherRanges) {
  EXPECT_FALSE(ends_of({{0, 0, 3}, {0, 3, 5}}, 2, 8).defined()); // two ranges of a matrix
  EXPECT_FALSE(ends_of({{1, 0, 3}, {0, 3, 5}}, 2, 8).defined()); // not in order
  EXPECT_FALSE(ends_of({{0, 0, 3}, {1, 4, 4}}, 2, 8).defined()); // a row between them
  EXPECT_FALSE(ends_of({{0, 0, 3}, {1, 3, 4}}, 2, 8).defined()); // a row behind them
  EXPECT_FALSE(ends_of({}, 2, 0).defined());
}

TEST(GroupedProduct, IsAProductForEachMatrix) {
  at::manual_seed(4);
  const std::vector<RowRange> ranges = {{0, 0, 7}, {2, 7, 33}, {3, 40, 1}};
  const at::Tensor weight = at::randn({5, 24, 16}).to(at::kBFloat16),
                   x = at::randn({41, 16}).to(at::kBFloat16),
                   dy = at::randn({41, 24}).to(at::kBFloat16), ends = ends_of(ranges, 5, 41);
  ASSERT_TRUE(ends.defined());
  const at::Tensor y = grouped_product(x, weight, ends, false),
                   dx = grouped_product(dy, weight, ends, true);
  for (const RowRange& range : ranges) {
    const auto rows = [&](const at::Tensor& of) {
      return of.narrow(0, range.begin, range.rows).to(at::kFloat);
    };
    const at::Tensor w = weight.select(0, range.matrix).to(at::kFloat);
    EXPECT_TRUE(at::allclose(rows(y), rows(x).matmul(w.t()), 1e-2, 1e-2));
    EXPECT_TRUE(at::allclose(rows(dx), rows(dy).matmul(w), 1e-2, 1e-2));
  }
}

} // namespace
} // namespace pentatron::nn
