// The operators against plain formulas that LibTorch's autograd differentiates, in fp64.
#include "pentatron/nn/ops/ops.h"

#include "pentatron/base/error.h"
#include "pentatron/base/philox.h"
#include "tests/nn/op_fixture.h"
#include "tests/support/ranks.h"

#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <cmath>

namespace pentatron::nn {
namespace {

using test::differentiate;
using test::expect_close;
using test::Params;
using test::Pass;
using test::randn;

constexpr test::Tolerance kExact{1e-12, 1e-12};

TEST(Linear, GradientsAreThoseOfItsFormula) {
  for (const int64_t tokens : {1, 5}) {
    for (const bool with_bias : {false, true}) {
      const at::Tensor x = randn({tokens, 3}, 1), w = randn({7, 3}, 2), b = randn({7}, 3),
                       dy = randn({tokens, 7}, 4);
      Params params;
      Param& weight = params.add("w", w);
      Param* bias = with_bias ? &params.add("b", b) : nullptr;
      Pass pass(tokens);
      const auto actual = differentiate(
          [&](const auto& in) { return linear(in[0], weight, bias, pass.ctx); }, {x}, dy);
      const auto expected = differentiate(
          [&](const auto& in) {
            const at::Tensor y = in[0].matmul(in[1].t());
            return with_bias ? y + in[2] : y;
          },
          {x, w, b}, dy);
      expect_close(actual.y, expected.y, kExact);
      expect_close(actual.grads[0], expected.grads[0], kExact);
      expect_close(weight.main_grad(), expected.grads[1], kExact);
      if (with_bias) expect_close(bias->main_grad(), expected.grads[2], kExact);
      EXPECT_EQ(weight.outstanding_uses(), 0);
    }
  }
}

TEST(Linear, GradientsOfSeveralUsesAddUp) {
  const at::Tensor x = randn({4, 3}, 1), w = randn({3, 3}, 2), dy = randn({4, 3}, 4);
  Params params;
  Param& weight = params.add("w", w);
  Pass pass(4);
  const auto actual = differentiate(
      [&](const auto& in) {
        return linear(linear(in[0], weight, nullptr, pass.ctx), weight, nullptr, pass.ctx);
      },
      {x}, dy);
  const auto expected = differentiate(
      [](const auto& in) { return in[0].matmul(in[1].t()).matmul(in[1].t()); }, {x, w}, dy);
  expect_close(actual.grads[0], expected.grads[0], kExact);
  expect_close(weight.main_grad(), expected.grads[1], kExact);
}

TEST(Linear, TrainsItsWeightWhereTheInputNeedsNoGradient) {
  const at::Tensor x = randn({4, 3}, 1), dy = randn({4, 2}, 2);
  Params params;
  Param& weight = params.add("w", randn({2, 3}, 3));
  Pass pass(4);
  const at::Tensor y = linear(x, weight, nullptr, pass.ctx);
  y.backward(dy);
  EXPECT_FALSE(x.grad().defined());
  expect_close(weight.main_grad(), dy.t().matmul(x), kExact);
}

TEST(Linear, AFrozenParameterGetsNothingAndOwesNothing) {
  const at::Tensor x = randn({4, 3}, 1), w = randn({2, 3}, 3), dy = randn({4, 2}, 2);
  for (const bool train_bias : {false, true}) {
    Params params;
    Param &weight = params.add("w", w), &bias = params.add("b", randn({2}, 5));
    weight.trainable = false;
    bias.trainable = train_bias;
    Pass pass(4);
    const auto actual = differentiate(
        [&](const auto& in) {
          const at::Tensor y = linear(in[0], weight, &bias, pass.ctx);
          EXPECT_EQ(weight.outstanding_uses(), 0);
          return y;
        },
        {x}, dy);
    expect_close(actual.grads[0], dy.matmul(w), kExact);
    EXPECT_EQ(weight.main_grad().abs().max().item<double>(), 0);
    EXPECT_EQ(bias.outstanding_uses(), 0);
    expect_close(bias.main_grad(), train_bias ? dy.sum(0) : at::zeros({2}, at::kDouble), kExact);
  }
}

TEST(Linear, OfAFrozenWeightThereIsNoProduct) {
  for (const bool train_bias : {false, true}) {
    Params params;
    Param &weight = params.add("w", randn({2, 3}, 3)), &bias = params.add("b", randn({2}, 5));
    weight.trainable = false;
    weight.set_main_grad({});
    bias.trainable = train_bias;
    Pass pass(4, /*deferred=*/true);
    differentiate([&](const auto& in) { return linear(in[0], weight, &bias, pass.ctx); },
                  {randn({4, 3}, 1)}, randn({4, 2}, 2));
    EXPECT_EQ(pass.wgrad.size(), train_bias ? 1u : 0u) << "a bias alone is one sum";
    pass.wgrad.drain();
    EXPECT_FALSE(weight.main_grad().defined());
    EXPECT_EQ(bias.outstanding_uses(), 0);
  }
}

TEST(Linear, Bf16GradientsAreSummedInFp32) {
  const int64_t tokens = 700;
  const at::Tensor x = randn({tokens, 24}, 1).to(at::kBFloat16),
                   w = randn({40, 24}, 2).to(at::kBFloat16),
                   dy = randn({tokens, 40}, 3).to(at::kBFloat16);
  Params params;
  Param& weight = params.add("w", w);
  ASSERT_EQ(weight.main_grad().scalar_type(), at::kFloat);
  Pass pass(tokens);
  const auto actual = differentiate(
      [&](const auto& in) { return linear(in[0], weight, nullptr, pass.ctx); }, {x}, dy);
  EXPECT_EQ(actual.y.scalar_type(), at::kBFloat16);
  const at::Tensor x64 = x.to(at::kDouble), w64 = w.to(at::kDouble), dy64 = dy.to(at::kDouble);
  EXPECT_LT(test::relative_error(actual.y, x64.matmul(w64.t())), 4e-3);
  EXPECT_LT(test::relative_error(actual.grads[0], dy64.matmul(w64)), 4e-3);
  EXPECT_LT(test::relative_error(weight.main_grad(), dy64.t().matmul(x64)), 1e-5);
}

TEST(AddBias, PassesTheGradientOnAndSumsItForTheBias) {
  const at::Tensor x = randn({5, 3}, 1), b = randn({3}, 2), dy = randn({5, 3}, 3);
  Params params;
  Param& bias = params.add("b", b);
  Pass pass(5);
  const auto actual =
      differentiate([&](const auto& in) { return add_bias(in[0], bias, pass.ctx); }, {x}, dy);
  expect_close(actual.y, x + b);
  expect_close(actual.grads[0], dy);
  expect_close(bias.main_grad(), dy.sum(0), kExact);
  EXPECT_EQ(bias.outstanding_uses(), 0);
}

at::Tensor plain_norm(const at::Tensor& x, const at::Tensor& w, const at::Tensor& b,
                      const NormOptions& o) {
  const at::Tensor weight = o.zero_centered ? w + 1 : w;
  if (o.kind == kernels::NormKind::kRmsNorm)
    return x * (x.square().mean(1, true) + o.eps).rsqrt() * weight;
  const at::Tensor centred = x - x.mean(1, true);
  return centred * (centred.square().mean(1, true) + o.eps).rsqrt() * weight + b;
}

class Norm : public testing::TestWithParam<std::tuple<kernels::NormKind, bool, int64_t>> {
 protected:
  NormOptions options() const {
    return {.kind = std::get<0>(GetParam()),
            .eps = 1e-3, // large enough to be seen
            .zero_centered = std::get<1>(GetParam())};
  }
  int64_t features() const { return std::get<2>(GetParam()); }
  bool has_bias() const { return options().kind == kernels::NormKind::kLayerNorm; }
};

TEST_P(Norm, GradientsAreThoseOfItsFormula) {
  const at::Tensor x = randn({5, features()}, 1), w = randn({features()}, 2),
                   b = randn({features()}, 3), dy = randn({5, features()}, 4);
  Params params;
  Param& weight = params.add("w", w);
  Param* bias = has_bias() ? &params.add("b", b) : nullptr;
  Pass pass(5);
  const auto actual = differentiate(
      [&](const auto& in) { return norm(in[0], weight, bias, options(), pass.ctx); }, {x}, dy);
  const auto expected = differentiate(
      [&](const auto& in) { return plain_norm(in[0], in[1], in[2], options()); }, {x, w, b}, dy);
  expect_close(actual.y, expected.y, kExact);
  expect_close(actual.grads[0], expected.grads[0], kExact);
  expect_close(weight.main_grad(), expected.grads[1], kExact);
  if (bias != nullptr) expect_close(bias->main_grad(), expected.grads[2], kExact);
  EXPECT_EQ(weight.outstanding_uses(), 0);
}

TEST_P(Norm, WithAResidualBothGradientsReachBothBranches) {
  const at::Tensor x = randn({5, features()}, 1), residual = randn({5, features()}, 5),
                   w = randn({features()}, 2), b = randn({features()}, 3),
                   mix = randn({5, features()}, 6);
  for (const bool sum_used : {false, true}) {
    Params params;
    Param& weight = params.add("w", w);
    Param* bias = has_bias() ? &params.add("b", b) : nullptr;
    Pass pass(5);
    const at::Tensor dy = randn({5, features()}, 4);
    const auto actual = differentiate(
        [&](const auto& in) {
          const auto [sum, y] = add_norm(in[0], in[1], weight, bias, options(), pass.ctx);
          return sum_used ? y + sum * mix : y;
        },
        {x, residual}, dy);
    const auto expected = differentiate(
        [&](const auto& in) {
          const at::Tensor sum = in[0] + in[1], y = plain_norm(sum, in[2], in[3], options());
          return sum_used ? y + sum * mix : y;
        },
        {x, residual, w, b}, dy);
    expect_close(actual.y, expected.y, kExact);
    expect_close(actual.grads[0], expected.grads[0], kExact);
    expect_close(actual.grads[1], expected.grads[1], kExact);
    expect_close(weight.main_grad(), expected.grads[2], kExact);
    if (bias != nullptr) expect_close(bias->main_grad(), expected.grads[3], kExact);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, Norm,
    testing::Combine(testing::Values(kernels::NormKind::kRmsNorm, kernels::NormKind::kLayerNorm),
                     testing::Bool(), testing::Values(1, 7, 32)),
    [](const auto& info) {
      return std::string(std::get<0>(info.param) == kernels::NormKind::kRmsNorm ? "rms" : "layer") +
             (std::get<1>(info.param) ? "_zero_centered_" : "_") +
             std::to_string(std::get<2>(info.param));
    });

at::Tensor plain_activation(const at::Tensor& x, kernels::Activation kind) {
  using K = kernels::Activation;
  switch (kind) {
  case K::kGelu:
    return 0.5 * x * (1 + at::erf(x / std::sqrt(2.0)));
  case K::kGeluTanh:
    return 0.5 * x * (1 + at::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
  case K::kQuickGelu:
    return x * at::sigmoid(1.702 * x);
  case K::kRelu:
    return at::relu(x);
  case K::kSquaredRelu:
    return at::relu(x).square();
  case K::kSilu:
    return x * at::sigmoid(x);
  }
  return {};
}

class ActivationOp : public testing::TestWithParam<kernels::Activation> {};

TEST_P(ActivationOp, GradientsAreThoseOfItsFormula) {
  for (const bool gated : {false, true}) {
    const int64_t f = 9;
    const at::Tensor x = randn({4, gated ? 2 * f : f}, 1) * 2, dy = randn({4, f}, 2);
    const auto actual = differentiate(
        [&](const auto& in) { return activation(in[0], GetParam(), gated); }, {x}, dy);
    const auto expected = differentiate(
        [&](const auto& in) {
          if (!gated) return plain_activation(in[0], GetParam());
          return plain_activation(in[0].narrow(1, 0, f), GetParam()) * in[0].narrow(1, f, f);
        },
        {x}, dy);
    expect_close(actual.y, expected.y, kExact);
    expect_close(actual.grads[0], expected.grads[0], kExact);
  }
}

INSTANTIATE_TEST_SUITE_P(Functions, ActivationOp,
                         testing::Values(kernels::Activation::kGelu, kernels::Activation::kGeluTanh,
                                         kernels::Activation::kQuickGelu,
                                         kernels::Activation::kRelu,
                                         kernels::Activation::kSquaredRelu,
                                         kernels::Activation::kSilu),
                         [](const auto& info) { return std::string(kernels::name(info.param)); });

at::Tensor ids_of(std::vector<int64_t> values) {
  return at::tensor(values, at::kLong);
}

TEST(Embedding, PicksRowsAndAddsTheirGradients) {
  const at::Tensor t = randn({6, 3}, 1), dy = randn({5, 3}, 2), ids = ids_of({2, 5, 2, 0, 2});
  Params params;
  Param& table = params.add("t", t);
  Pass pass(5);
  const at::Tensor y = embedding(ids, table, nullptr, 0, pass.ctx);
  expect_close(y, t.index_select(0, ids));
  EXPECT_EQ(table.outstanding_uses(), 1);
  y.backward(dy);
  expect_close(table.main_grad(), at::zeros({6, 3}, at::kDouble).index_add(0, ids, dy), kExact);
  EXPECT_EQ(table.outstanding_uses(), 0);
}

TEST(Embedding, OfFrozenTablesNeedsNoBackward) {
  for (const bool train_positions : {false, true}) {
    Params params;
    Param &table = params.add("t", randn({6, 3}, 1)),
          &positions = params.add("p", randn({5, 3}, 2));
    table.trainable = false;
    table.set_main_grad({});
    positions.trainable = train_positions;
    Pass pass(5);
    const at::Tensor y = embedding(ids_of({2, 5, 2, 0, 2}), table, &positions, 0, pass.ctx);
    EXPECT_EQ(y.requires_grad(), train_positions);
    if (train_positions) y.backward(at::ones({5, 3}, at::kDouble));
    EXPECT_EQ(positions.main_grad().sum().item<double>(), train_positions ? 15 : 0);
    EXPECT_EQ(table.outstanding_uses() + positions.outstanding_uses(), 0);
  }
}

TEST(Embedding, IdsOfOtherRanksGiveZerosAndNoGradient) {
  const at::Tensor t = randn({3, 2}, 1), dy = randn({5, 2}, 2), ids = ids_of({0, 4, 6, 9, 5});
  Params params;
  Param& table = params.add("t", t); // rows 4, 5, 6 of the vocabulary
  Pass pass(5);
  const at::Tensor y = embedding(ids, table, nullptr, 4, pass.ctx);
  expect_close(
      y, at::stack({at::zeros({2}, at::kDouble), t[0], t[2], at::zeros({2}, at::kDouble), t[1]}));
  y.backward(dy);
  expect_close(table.main_grad(), at::stack({dy[1], dy[4], dy[2]}));
}

TEST(Embedding, LookupsOfThePaddingRowAddNoGradient) {
  const at::Tensor t = randn({3, 2}, 1), dy = randn({5, 2}, 2), ids = ids_of({0, 4, 6, 4, 5});
  Params params;
  Param& table = params.add("t", t); // rows 4, 5, 6 of the vocabulary
  table.padding_row = 4;
  Pass pass(5);
  const at::Tensor y = embedding(ids, table, nullptr, 4, pass.ctx);
  expect_close(y[1], t[0], kExact);
  y.backward(dy);
  expect_close(table.main_grad(), at::stack({at::zeros({2}, at::kDouble), dy[4], dy[2]}), kExact);
}

TEST(Embedding, PositionsComeFromTheLayout) {
  const at::Tensor t = randn({4, 3}, 1), p = randn({8, 3}, 2), dy = randn({6, 3}, 3);
  const at::Tensor ids = ids_of({1, 1, 3, 0, 2, 1});
  Params params;
  Param &table = params.add("t", t), &positions = params.add("p", p);
  Pass pass(SequenceLayout::packed(2, 3, {0, 1}, {0, 2, 3, 6}, true, at::kCPU));
  const at::Tensor at = ids_of({0, 1, 0, 0, 1, 2}); // the second document begins at token 2
  const at::Tensor y = embedding(ids, table, &positions, 0, pass.ctx);
  expect_close(y, t.index_select(0, ids) + p.index_select(0, at), kExact);
  y.backward(dy);
  expect_close(positions.main_grad(), at::zeros({8, 3}, at::kDouble).index_add(0, at, dy), kExact);
  expect_close(table.main_grad(), at::zeros({4, 3}, at::kDouble).index_add(0, ids, dy), kExact);
}

at::Tensor dropout_mask(const SequenceLayout& layout, int64_t features, const DropoutSite& site,
                        uint64_t seed) {
  Pass pass(layout);
  pass.ctx.training = true;
  pass.ctx.seed = seed;
  const at::NoGradGuard no_grad;
  return dropout(at::ones({layout.tokens(), features}, at::kDouble), site, pass.ctx);
}

TEST(DropoutOp, ScalesWhatItKeepsAndBackwardDrawsTheSameMask) {
  const DropoutSite site{.p = 0.3, .site = 4};
  Pass pass(SequenceLayout::dense(2, 5, {8, 9}, at::kCPU));
  pass.ctx.training = true;
  pass.ctx.seed = 3;
  const at::Tensor x = randn({10, 33}, 1), dy = randn({10, 33}, 2);
  const auto actual =
      differentiate([&](const auto& in) { return dropout(in[0], site, pass.ctx); }, {x}, dy);
  const at::Tensor mask = dropout_mask(pass.layout, 33, site, 3);
  expect_close(actual.y, x * mask, kExact);
  expect_close(actual.grads[0], dy * mask, kExact);
  const at::Tensor kept = mask.ne(0);
  expect_close(mask.masked_select(kept),
               at::full({kept.sum().item<int64_t>()}, 1 / 0.7, at::kDouble), kExact);
}

TEST(DropoutOp, TheMaskFollowsTheSamplesHoweverTheyAreSplit) {
  const DropoutSite site{.p = 0.5, .site = 2};
  const at::Tensor whole =
      dropout_mask(SequenceLayout::dense(3, 7, {40, 41, 42}, at::kCPU), 50, site, 1);
  for (int64_t b = 0; b < 3; ++b) { // microbatches of one
    const auto one = SequenceLayout::dense(1, 7, {static_cast<uint64_t>(40 + b)}, at::kCPU);
    expect_close(dropout_mask(one, 50, site, 1), whole.narrow(0, 7 * b, 7));
  }
  const at::Tensor swapped =
      dropout_mask(SequenceLayout::dense(2, 7, {42, 41}, at::kCPU), 50, site, 1);
  expect_close(swapped, at::cat({whole.narrow(0, 14, 7), whole.narrow(0, 7, 7)}));
  // Packing moves no mask: the address is the position in the sample.
  expect_close(
      dropout_mask(SequenceLayout::packed(1, 7, {41}, {0, 3, 7}, true, at::kCPU), 50, site, 1),
      whole.narrow(0, 7, 7));
  for (const int64_t begin : {0, 1, 17, 49}) { // features of another rank
    DropoutSite part = site;
    part.feature_offset = begin;
    expect_close(
        dropout_mask(SequenceLayout::dense(3, 7, {40, 41, 42}, at::kCPU), 50 - begin, part, 1),
        whole.narrow(1, begin, 50 - begin));
  }
}

TEST(DropoutOp, SeedsSitesAndSamplesDrawDifferentMasksOfTheRightShare) {
  const auto layout = SequenceLayout::dense(1, 64, {5}, at::kCPU);
  const auto mask = [&](uint64_t sample, uint32_t site, uint64_t seed) {
    return dropout_mask(SequenceLayout::dense(1, 64, {sample}, at::kCPU), 128,
                        {.p = 0.25, .site = site}, seed)
        .ne(0);
  };
  const at::Tensor base = mask(5, 1, 9);
  for (const at::Tensor& other : {mask(6, 1, 9), mask(5, 2, 9), mask(5, 1, 10)}) {
    // Independent masks agree in 0.75^2 + 0.25^2 = 0.625 of 8192 places, standard deviation 0.0053.
    EXPECT_NEAR(base.eq(other).to(at::kDouble).mean().item<double>(), 0.625, 0.027);
    EXPECT_NEAR(other.to(at::kDouble).mean().item<double>(), 0.75, 0.024);
  }
}

TEST(DropoutOp, IsAbsentOutsideTrainingAndAtZero) {
  Pass pass(4);
  const at::Tensor x = randn({4, 3}, 1);
  pass.ctx.training = false;
  EXPECT_TRUE(dropout(x, {.p = 0.5}, pass.ctx).is_same(x));
  pass.ctx.training = true;
  EXPECT_TRUE(dropout(x, {.p = 0}, pass.ctx).is_same(x));
}

} // namespace
} // namespace pentatron::nn
