// LibTorch's grouped product, as GPUs run it, against a product for each matrix.
#include "pentatron/nn/ops/rows.h"

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "pentatron/nn/param_store.h"
#include "tests/nn/saved_fixture.h"

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

struct Results {
  at::Tensor y, dx, dscale, dw, db;
};

/// Of experts with few, no and many rows, with a bias that a number of each row may multiply.
Results of_experts(bool grouped, bool scaled) {
  use_grouped_product_on_cpus(grouped);
  at::manual_seed(5);
  ParamList params;
  Param& weight =
      params.add({.name = "w", .shape = {4, 24, 16}}, Init::normal(0.5), at::kBFloat16, {});
  Param& bias = params.add({.name = "b", .shape = {4, 24}}, Init::normal(0.5), at::kBFloat16, {});
  ResidentStore store(params, at::kCPU);
  weight.initialize(7);
  bias.initialize(8);
  WgradQueue queue;
  const ForwardContext ctx{.wgrad = &queue, .differentiated = true};
  const at::Tensor x = at::randn({41, 16}).to(at::kBFloat16).requires_grad_(),
                   scale = scaled ? at::randn({41}).requires_grad_() : at::Tensor();
  const at::Tensor y =
      grouped_linear(x, {{0, 0, 7}, {2, 7, 33}, {3, 40, 1}}, weight, &bias, scale, ctx);
  y.backward(at::randn({41, 24}).to(at::kBFloat16));
  queue.drain();
  use_grouped_product_on_cpus(false);
  return {y.detach(), x.grad(), scaled ? scale.grad() : at::ones({1}), weight.main_grad(),
          bias.main_grad()};
}

TEST(GroupedProduct, IsTheLinearLayerOfExperts) {
  for (const bool scaled : {false, true}) {
    const Results one = of_experts(true, scaled), each = of_experts(false, scaled);
    for (const auto& [a, b] :
         {std::pair{one.y, each.y}, std::pair{one.dx, each.dx}, std::pair{one.dw, each.dw},
          std::pair{one.db, each.db}, std::pair{one.dscale, each.dscale}}) {
      EXPECT_GT(b.norm().item<double>(), 0);
      EXPECT_TRUE(at::allclose(a.to(at::kFloat), b.to(at::kFloat), 1e-2, 1e-2)) << scaled;
    }
  }
}

TEST(GroupedLinear, KeepsItsInputOnlyForWeightsThatTrain) {
  ParamList params;
  Param& weight = params.add({.name = "w", .shape = {2, 8, 16}}, Init::normal(0.5), at::kFloat, {});
  Param& bias = params.add({.name = "b", .shape = {2, 8}}, Init::normal(0.5), at::kFloat, {});
  ResidentStore store(params, at::kCPU);
  weight.initialize(7);
  bias.initialize(8);
  WgradQueue queue;
  const ForwardContext ctx{.wgrad = &queue, .differentiated = true};
  for (const auto& [of_weight, of_bias] :
       {std::pair{true, true}, std::pair{false, true}, std::pair{false, false}}) {
    weight.trainable = of_weight;
    bias.trainable = of_bias;
    const at::Tensor x = at::randn({5, 16}).requires_grad_();
    const auto kept = std::make_shared<test::Offload>();
    at::Tensor y;
    {
      const SavedHooksScope installed(kept);
      y = grouped_linear(x, {{0, 0, 2}, {1, 2, 3}}, weight, &bias, at::Tensor(), ctx);
    }
    EXPECT_EQ(kept->saved, of_weight || of_bias ? 1 : 0);
    const at::Tensor dy = at::randn({5, 8});
    y.backward(dy);
    queue.drain();
    EXPECT_TRUE(at::allclose(x.grad().narrow(0, 2, 3),
                             dy.narrow(0, 2, 3).matmul(weight.value().select(0, 1)), 1e-4, 1e-5));
  }
}

} // namespace
} // namespace pentatron::nn
