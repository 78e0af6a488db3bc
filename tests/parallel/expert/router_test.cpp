// The selection of experts against a definition in plain loops, gradients against differences.
#include "pentatron/parallel/expert/router.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include <gtest/gtest.h>

#include "tests/nn/op_fixture.h"

namespace pentatron::parallel {
namespace {

using test::expect_close;
using test::randn;

struct Case {
  const char* name;
  RouterOptions options;
  bool bias = false;
};
std::ostream& operator<<(std::ostream& out, const Case& c) {
  return out << c.name;
}

std::vector<Case> cases() {
  using S = RouterScore;
  return {
      {"softmax_of_selected", {.experts = 6, .top_k = 2}},
      {"softmax_of_all", {.experts = 6, .top_k = 3, .score_first = true}},
      {"normalized", {.experts = 5, .top_k = 2, .score_first = true, .normalize = true}},
      {"scaled", {.experts = 5, .top_k = 2, .scaling = 2.5}},
      {"sigmoid", {.experts = 8, .top_k = 3, .score = S::kSigmoid}, true},
      {"square_root_of_softplus",
       {.experts = 8, .top_k = 2, .score = S::kSqrtSoftplus, .normalize = true}},
      {"groups",
       {.experts = 8,
        .top_k = 2,
        .score = S::kSigmoid,
        .normalize = true,
        .scaling = 2.5,
        .groups = 4,
        .group_top_k = 2,
        .group_score_top_k = 2},
       true},
      {"one_expert", {.experts = 4, .top_k = 1}},
      {"all_experts", {.experts = 3, .top_k = 3, .score_first = true}},
  };
}

/// Numbers of the k greatest, of equal ones the first.
std::vector<int64_t> greatest(const std::vector<double>& values, int64_t k) {
  std::vector<int64_t> order(values.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return values[static_cast<size_t>(a)] > values[static_cast<size_t>(b)];
  });
  order.resize(static_cast<size_t>(k));
  return order;
}

/// One token's experts and probs, by the definition.
void define(const std::vector<double>& logits, const std::vector<double>& bias,
            const RouterOptions& o, std::vector<int64_t>& experts, std::vector<double>& probs) {
  std::vector<double> scores(logits.size());
  double sum = 0;
  for (size_t e = 0; e < logits.size(); ++e) {
    if (o.score == RouterScore::kSigmoid) scores[e] = 1 / (1 + std::exp(-logits[e]));
    if (o.score == RouterScore::kSqrtSoftplus)
      scores[e] = std::sqrt(std::log1p(std::exp(logits[e])));
    if (o.score == RouterScore::kSoftmax) sum += scores[e] = std::exp(logits[e]);
  }
  if (o.score == RouterScore::kSoftmax)
    for (double& s : scores) s /= sum;
  std::vector<double> selection = scores;
  for (size_t e = 0; e < bias.size(); ++e) selection[e] += bias[e];
  if (o.groups > 1) {
    const auto size = static_cast<size_t>(o.experts / o.groups);
    std::vector<double> group_scores;
    for (size_t g = 0; g < static_cast<size_t>(o.groups); ++g) {
      std::vector<double> own(selection.begin() + static_cast<long>(g * size),
                              selection.begin() + static_cast<long>((g + 1) * size));
      std::sort(own.rbegin(), own.rend());
      group_scores.push_back(std::accumulate(own.begin(), own.begin() + o.group_score_top_k, 0.0));
    }
    const auto open = greatest(group_scores, o.group_top_k);
    for (size_t e = 0; e < selection.size(); ++e)
      if (std::find(open.begin(), open.end(), static_cast<int64_t>(e / size)) == open.end())
        selection[e] = -1e300;
  }
  experts = greatest(selection, o.top_k);
  probs.clear();
  for (const int64_t e : experts) probs.push_back(scores[static_cast<size_t>(e)]);
  const bool of_selected = o.score == RouterScore::kSoftmax && !o.score_first;
  const double total = std::accumulate(probs.begin(), probs.end(), 0.0);
  for (double& p : probs) p *= o.scaling / (o.normalize || of_selected ? total : 1);
}

class Router : public testing::TestWithParam<Case> {};

TEST_P(Router, SelectsAndWeighsByTheDefinition) {
  const RouterOptions& o = GetParam().options;
  at::Tensor logits = randn({40, o.experts}, 1);
  logits.slice(0, 0, 10) = logits.slice(0, 0, 10).round(); // ties
  const at::Tensor bias = GetParam().bias ? 0.3 * randn({o.experts}, 2) : at::Tensor();
  const Routed routed = route(logits, {.bias = bias}, o);
  for (int64_t t = 0; t < logits.size(0); ++t) {
    const auto row = [](const at::Tensor& x) {
      return std::vector<double>(x.const_data_ptr<double>(),
                                 x.const_data_ptr<double>() + x.numel());
    };
    std::vector<int64_t> experts;
    std::vector<double> probs;
    define(row(logits[t].contiguous()), bias.defined() ? row(bias) : std::vector<double>(), o,
           experts, probs);
    for (int64_t j = 0; j < o.top_k; ++j) {
      EXPECT_EQ(routed.experts[t][j].item<int64_t>(), experts[static_cast<size_t>(j)]) << t;
      EXPECT_NEAR(routed.probs[t][j].item<double>(), probs[static_cast<size_t>(j)], 1e-14) << t;
    }
  }
}

TEST_P(Router, GradientsAreThoseOfDifferences) {
  const RouterOptions& o = GetParam().options;
  const at::Tensor logits = randn({5, o.experts}, 3), dy = randn({5, o.top_k}, 4);
  const auto value = [&](const at::Tensor& x) { return (route(x, {}, o).probs * dy).sum(); };
  const at::Tensor leaf = logits.clone().requires_grad_(true);
  value(leaf).backward();
  constexpr double kStep = 1e-6;
  for (int64_t i = 0; i < logits.numel(); ++i) {
    at::Tensor up = logits.clone(), down = logits.clone();
    up.view({-1})[i] += kStep;
    down.view({-1})[i] -= kStep;
    EXPECT_NEAR(leaf.grad().view({-1})[i].item<double>(),
                (value(up) - value(down)).item<double>() / (2 * kStep), 1e-8);
  }
}

INSTANTIATE_TEST_SUITE_P(Options, Router, testing::ValuesIn(cases()),
                         [](const auto& info) { return info.param.name; });

TEST(Router, NotANumberIsChosenLast) {
  const at::Tensor logits = at::tensor({NAN, 1.0, NAN, 0.5}, at::kDouble).unsqueeze(0);
  const Routed routed = route(logits, {}, {.experts = 4, .top_k = 2});
  EXPECT_TRUE(at::equal(routed.experts, at::tensor({1, 3}, at::kLong).unsqueeze(0)));
}

/// With a mask of 0 in place of minus infinity, experts of closed groups would come first.
TEST(Router, ClosedGroupsStayClosedWhereScoresAndBiasAreNegative) {
  const at::Tensor logits = randn({20, 8}, 5), bias = at::full({8}, -2.0, at::kDouble);
  const RouterOptions o{.experts = 8,
                        .top_k = 2,
                        .score = RouterScore::kSigmoid,
                        .groups = 4,
                        .group_top_k = 1,
                        .group_score_top_k = 2};
  const at::Tensor best = logits.sigmoid().view({20, 4, 2}).sum(2).argmax(1);
  const Routed routed = route(logits, {.bias = bias}, o);
  EXPECT_TRUE(
      at::equal(std::get<0>(routed.experts.sort(1)), at::stack({2 * best, 2 * best + 1}, 1)));
}

TEST(Router, SquareRootOfSoftplusIsFiniteForLargeLogits) {
  const at::Tensor logits = at::tensor({400.0f, -400.0f, 0.0f}).view({1, 3}).requires_grad_(true);
  const Routed routed =
      route(logits, {}, {.experts = 3, .top_k = 1, .score = RouterScore::kSqrtSoftplus});
  EXPECT_FLOAT_EQ(routed.probs.item<float>(), 20);
  routed.probs.sum().backward();
  EXPECT_FLOAT_EQ(logits.grad()[0][0].item<float>(), 1.0f / 40);
}

TEST(RouterLogits, OfNarrowInputsAreInTheAccumulateType) {
  test::Params params;
  const at::Tensor x = randn({7, 16}, 1).to(at::kBFloat16), w = randn({4, 16}, 2),
                   b = randn({4}, 3), dy = randn({7, 4}, 4).to(at::kFloat);
  nn::Param& weight = params.add("w", w.to(at::kBFloat16));
  nn::Param& bias = params.add("b", b.to(at::kBFloat16));
  test::Pass pass(7);
  const auto r = test::differentiate(
      [&](const auto& in) { return router_logits(in[0], weight, &bias, pass.ctx); }, {x}, dy);
  const at::Tensor wide = x.to(at::kFloat), wide_w = weight.value().to(at::kFloat);
  EXPECT_EQ(r.y.scalar_type(), at::kFloat);
  expect_close(r.y, wide.matmul(wide_w.t()) + bias.value().to(at::kFloat), {1e-5, 1e-5});
  EXPECT_EQ(r.grads[0].scalar_type(), at::kBFloat16);
  expect_close(r.grads[0].to(at::kFloat), dy.matmul(wide_w), {1e-2, 1e-2});
  expect_close(weight.main_grad(), dy.t().matmul(wide), {1e-5, 1e-5});
  expect_close(bias.main_grad(), dy.sum(0), {1e-5, 1e-5});
}

} // namespace
} // namespace pentatron::parallel
