// The three products of a linear layer against fp64, for every type, shape and stride they are used
// with.
#include "pentatron/nn/ops/matmul.h"

#include "tests/nn/op_fixture.h"

#include <gtest/gtest.h>

#include <cmath>

namespace pentatron::nn {
namespace {

using test::randn;
using test::relative_error;

struct Case {
  int64_t tokens, in, out;
};

class Matmul : public testing::TestWithParam<std::tuple<at::ScalarType, Case>> {
 protected:
  at::ScalarType dtype() const { return std::get<0>(GetParam()); }
  Case shape() const { return std::get<1>(GetParam()); }
  double rounding() const { // of a result in the type
    return dtype() == at::kDouble  ? 1e-14
           : dtype() == at::kFloat ? 1e-6
           : dtype() == at::kHalf  ? 5e-4
                                   : 4e-3;
  }
  double acc_rounding() const { return dtype() == at::kDouble ? 1e-14 : 2e-6; }
  /// Columns of a wider buffer: rows are strided.
  at::Tensor strided(int64_t rows, int64_t columns, uint64_t seed) const {
    return randn({rows, columns + 5}, seed).to(dtype()).narrow(1, 2, columns);
  }
};

TEST_P(Matmul, ForwardWithAndWithoutABias) {
  const auto [t, in, out] = shape();
  const at::Tensor x = strided(t, in, 1), w = randn({out, in}, 2).to(dtype()),
                   b = randn({out}, 3).to(dtype());
  const at::Tensor y = x.to(at::kDouble).matmul(w.to(at::kDouble).t());
  EXPECT_LT(relative_error(matmul_nt(x, w), y), rounding());
  EXPECT_LT(relative_error(matmul_nt(x.contiguous(), w), y), rounding());
  EXPECT_LT(relative_error(matmul_nt(x, w, b), y + b.to(at::kDouble)), rounding());
  EXPECT_EQ(matmul_nt(x, w).scalar_type(), dtype());
  const at::ScalarType acc = dtype() == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor wide = at::empty({t, out}, acc);
  matmul_nt_acc(wide, x.contiguous(), w);
  EXPECT_LT(relative_error(wide, y), acc_rounding());
}

TEST_P(Matmul, InputGradient) {
  const auto [t, in, out] = shape();
  const at::Tensor dy = strided(t, out, 1), w = randn({out, in}, 2).to(dtype());
  const at::Tensor dx = dy.to(at::kDouble).matmul(w.to(at::kDouble));
  EXPECT_LT(relative_error(matmul_nn(dy, w), dx), rounding());
  EXPECT_LT(relative_error(matmul_nn(dy.contiguous(), w), dx), rounding());
}

TEST_P(Matmul, WeightGradientIsAddedInTheAccumulateType) {
  const auto [t, in, out] = shape();
  const at::Tensor dy = strided(t, out, 1), x = strided(t, in, 2), start = randn({out, in}, 3),
                   start_bias = randn({out}, 4);
  const at::ScalarType acc = dtype() == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor grad = start.clone().to(acc), bias = start_bias.clone().to(acc);
  add_matmul_tn(grad, dy, x);
  EXPECT_LT(relative_error(grad, start + dy.to(at::kDouble).t().matmul(x.to(at::kDouble))),
            acc_rounding());
  add_column_sums(bias, dy);
  EXPECT_LT(relative_error(bias, start_bias + dy.to(at::kDouble).sum(0)), acc_rounding());
}

TEST_P(Matmul, TheFirstWeightGradientDoesNotReadWhatWasThere) {
  const auto [t, in, out] = shape();
  const at::ScalarType acc = dtype() == at::kDouble ? at::kDouble : at::kFloat;
  for (const int64_t tokens : {t, int64_t{0}}) {
    const at::Tensor dy = strided(t, out, 1).narrow(0, 0, tokens),
                     x = strided(t, in, 2).narrow(0, 0, tokens);
    const at::Tensor grad = at::full({out, in}, std::nan(""), acc), zeros = at::zeros_like(grad);
    add_matmul_tn(grad, dy, x, /*empty=*/true);
    add_matmul_tn(zeros, dy, x);
    EXPECT_TRUE(at::equal(grad, zeros)) << tokens;
  }
}

TEST_P(Matmul, OfMatricesAndStacksInAnyStorage) {
  const auto [m, k, n] = shape();
  const auto stored = [&](int64_t rows, int64_t columns, int how, uint64_t seed) {
    const at::Tensor wide = randn({3, rows, columns + 5}, seed).to(dtype());
    if (how == 0) return wide.narrow(2, 2, columns);
    const at::Tensor tall = randn({3, columns, rows}, seed).to(dtype()).transpose(1, 2);
    return how == 1 ? tall
                    : wide.slice(2, 0, 2 * columns, 2).repeat({1, 1, 3}).narrow(2, 0, columns);
  };
  for (int how = 0; how < 9; ++how) {
    const at::Tensor a = stored(m, k, how % 3, 1), b = stored(k, n, how / 3, 2);
    const at::Tensor c = a.to(at::kDouble).matmul(b.to(at::kDouble));
    const at::Tensor out = randn({3, m, n + 3}, 3).to(dtype()), kept = out.clone();
    multiply_into(out.narrow(2, 0, n), a, b);
    EXPECT_LT(relative_error(out.narrow(2, 0, n), c), rounding()) << how;
    EXPECT_TRUE(at::equal(out.narrow(2, n, 3), kept.narrow(2, n, 3))) << how;
    multiply_into(out[1].narrow(1, 0, n), a[2], b[0]);
    EXPECT_LT(
        relative_error(out[1].narrow(1, 0, n), a[2].to(at::kDouble).matmul(b[0].to(at::kDouble))),
        rounding())
        << how;
  }
}

TEST_P(Matmul, OfWhatIsSymmetric) {
  const auto [rows, columns, unused] = shape();
  const at::Tensor x = randn({2, rows, columns}, 1).to(dtype());
  const at::Tensor g = x.to(at::kDouble).matmul(x.to(at::kDouble).transpose(1, 2));
  for (const bool turned : {false, true}) {
    const at::Tensor own = turned ? x.transpose(1, 2).contiguous().transpose(1, 2) : x;
    const at::Tensor stack = symmetric_product(own, own.transpose(1, 2));
    EXPECT_LT(relative_error(stack, g), rounding());
    EXPECT_LT(relative_error(symmetric_product(own[1], own[1].t()), g[1]), rounding());
    EXPECT_TRUE(dtype() == at::kDouble || at::equal(stack, stack.transpose(1, 2)));
  }
}

INSTANTIATE_TEST_SUITE_P(TypesAndShapes, Matmul,
                         testing::Combine(testing::Values(at::kDouble, at::kFloat, at::kBFloat16,
                                                          at::kHalf),
                                          testing::Values(Case{1, 1, 1}, Case{3, 5, 7},
                                                          Case{33, 64, 96}, Case{130, 50, 65})),
                         [](const auto& info) {
                           const Case c = std::get<1>(info.param);
                           return std::string(c10::toString(std::get<0>(info.param))) + "_" +
                                  std::to_string(c.tokens) + "x" + std::to_string(c.in) + "x" +
                                  std::to_string(c.out);
                         });

} // namespace
} // namespace pentatron::nn
