#include "pentatron/nn/int8_weight.h"

#include <ATen/ATen.h>

#include <gtest/gtest.h>

#include "tests/support/tensors.h"

namespace pentatron::nn {
namespace {

TEST(Int8Weight, IsWithinHalfAStepOfEveryBlock) {
  const at::Tensor w = test::randn({7, 96}, 1) * at::logspace(-3, 3, 96).unsqueeze(0);
  const Int8Weight stored(w, Int8Weight::block_of(96));
  const at::Tensor values = stored.rows(0, 7, at::kDouble);
  const at::Tensor step = w.to(at::kDouble).view({7, 3, 32}).abs().amax(-1, true) / 127;
  // Scales are rounded to bf16, so the largest elements may be off by 2^-8 of themselves.
  const at::Tensor bound = step * 0.502 + step * 127 / 256;
  EXPECT_TRUE(((values - w).view({7, 3, 32}).abs() <= bound).all().item<bool>());
  const at::Tensor small = w.view({7, 3, 32}).abs() < step * 60;
  EXPECT_TRUE(
      ((values - w).view({7, 3, 32}).abs() <= step * 0.51).logical_or(~small).all().item<bool>());
  EXPECT_EQ(stored.bytes(), 7 * 96 + 7 * 3 * 2);
}

TEST(Int8Weight, KeepsZerosAndWhatItHolds) {
  const at::Tensor w = at::zeros({2, 64});
  w[1][3] = -4;
  const at::Tensor values = Int8Weight(w, 32).rows(0, 2, at::kFloat);
  EXPECT_TRUE(at::equal(values[0], w[0]));
  EXPECT_NEAR(values[1][3].item<float>(), -4, 4.0 / 256);
  const at::Tensor again = Int8Weight(values, 32).rows(0, 2, at::kFloat);
  EXPECT_TRUE(at::equal(values, again));
}

TEST(Int8Weight, PartsOfAMatrixAreWhatTheWholeHas) {
  const at::Tensor w = test::randn({3, 8, 64}, 2);
  const Int8Weight whole(w, 32), part(w.narrow(2, 32, 32).contiguous(), 32);
  EXPECT_TRUE(
      at::equal(part.rows(8, 8, at::kFloat), whole.rows(8, 8, at::kFloat).narrow(1, 32, 32)));
  EXPECT_TRUE(
      at::equal(whole.rows(8, 8, at::kFloat), whole.rows(0, 24, at::kFloat).narrow(0, 8, 8)));
}

TEST(Int8Weight, BlocksDivideTheColumns) {
  EXPECT_EQ(Int8Weight::block_of(4096), 32);
  EXPECT_EQ(Int8Weight::block_of(16), 16);
  EXPECT_EQ(Int8Weight::block_of(100), 25);
  EXPECT_EQ(Int8Weight::block_of(37), 1);
}

} // namespace
} // namespace pentatron::nn
