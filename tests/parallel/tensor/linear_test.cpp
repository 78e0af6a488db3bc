// Linear layers split over ranks against the same product on one.
#include "pentatron/parallel/tensor/linear.h"

#include "pentatron/base/error.h"
#include "pentatron/nn/param_store.h"
#include "tests/nn/op_fixture.h"
#include "tests/support/ranks.h"

#include <gtest/gtest.h>

namespace pentatron::parallel {
namespace {

using test::expect_close;
using test::randn;
using test::run_ranks;
using test::shard;

constexpr int64_t kLinearTokens = 5;
constexpr test::Tolerance kExactLinear{1e-12, 1e-12};

class ParallelLinear : public testing::TestWithParam<std::tuple<int, bool>> {
 protected:
  int ranks() const { return std::get<0>(GetParam()); }
  bool bias() const { return std::get<1>(GetParam()); }
  static nn::Scope scope(nn::ParamList& params, const comm::Group& tp) {
    return {params, at::kDouble, {{"tp", {tp.rank(), tp.size()}}}};
  }
  /// Gradient of the rank's parameter in a global tensor of zeros.
  static at::Tensor global_gradient(const nn::Param& param) {
    at::Tensor global = at::zeros(param.spec().shape, at::kDouble);
    nn::store_global(param, param.main_grad(), global);
    return global;
  }
};

TEST_P(ParallelLinear, ColumnSplitsEveryFusedPart) {
  const at::Tensor x = randn({kLinearTokens, 3}, 1), w = randn({24, 3}, 2), b = randn({24}, 3),
                   dy = randn({kLinearTokens, 24}, 4);
  // gate | up of 12 rows each: a rank holds [its gate; its up].
  run_ranks(ranks(), [&](const comm::Group& tp) {
    const auto own = [&](const at::Tensor& full, int64_t dim) {
      return at::cat(
          {shard(full.narrow(dim, 0, 12), dim, tp), shard(full.narrow(dim, 12, 12), dim, tp)}, dim);
    };
    nn::ParamList params;
    const ColumnParallelLinear layer(
        scope(params, tp), {.in = 3, .parts = {{"gate", 12, 1}, {"up", 12, 1}}, .bias = bias()},
        tp);
    const nn::ResidentStore store(params, at::kCPU);
    nn::load_global(params.find("weight"), w);
    if (bias()) nn::load_global(params.find("bias"), b);
    expect_close(params.find("weight").value(), own(w, 0));
    test::Pass pass(kLinearTokens);
    const auto r = test::differentiate(
        [&](const auto& in) { return layer.forward(in[0], pass.ctx); }, {x}, own(dy, 1));
    expect_close(r.y, own(x.matmul(w.t()) + (bias() ? b : at::zeros_like(b)), 1), kExactLinear);
    expect_close(r.grads[0], dy.matmul(w), kExactLinear); // all-reduced: full on every rank
    expect_close(params.find("weight").main_grad(), own(dy.t().matmul(x), 0), kExactLinear);
    if (bias()) expect_close(params.find("bias").main_grad(), own(dy.sum(0), 0), kExactLinear);
  });
}

TEST_P(ParallelLinear, RowSumsOverRanksAndAddsItsBiasOnce) {
  const at::Tensor x = randn({kLinearTokens, 12}, 1), w = randn({7, 12}, 2), b = randn({7}, 3),
                   dy = randn({kLinearTokens, 7}, 4);
  run_ranks(ranks(), [&](const comm::Group& tp) {
    nn::ParamList params;
    const RowParallelLinear layer(scope(params, tp), {.in = 12, .out = 7, .bias = bias()}, tp);
    const nn::ResidentStore store(params, at::kCPU);
    nn::load_global(params.find("weight"), w);
    if (bias()) nn::load_global(params.find("bias"), b);
    test::Pass pass(kLinearTokens);
    const auto r = test::differentiate(
        [&](const auto& in) { return layer.forward(in[0], pass.ctx); }, {shard(x, 1, tp)}, dy);
    expect_close(r.y, x.matmul(w.t()) + (bias() ? b : at::zeros_like(b)), kExactLinear);
    expect_close(r.grads[0], shard(dy.matmul(w), 1, tp), kExactLinear);
    expect_close(params.find("weight").main_grad(), shard(dy.t().matmul(x), 1, tp), kExactLinear);
    if (bias()) {
      expect_close(params.find("bias").main_grad(), dy.sum(0), kExactLinear);
      EXPECT_EQ(params.find("bias").spec().placement("tp").kind, nn::Placement::Kind::kReplicate);
    }
    for (const nn::Param& param : params) EXPECT_EQ(param.outstanding_uses(), 0);
  });
}

TEST_P(ParallelLinear, OfFrozenWeightsThereIsNoProduct) {
  run_ranks(ranks(), [&](const comm::Group& tp) {
    nn::ParamList params;
    const ColumnParallelLinear up(scope(params, tp) / "up",
                                  {.in = 4, .parts = {{"up", 12, 1}}, .bias = bias()}, tp);
    const RowParallelLinear down(scope(params, tp) / "down", {.in = 12, .out = 4, .bias = bias()},
                                 tp);
    for (const char* weight : {"up.weight", "down.weight"}) params.find(weight).trainable = false;
    const nn::ResidentStore store(params, at::kCPU);
    const at::Tensor w1 = randn({12, 4}, 3), w2 = randn({4, 12}, 4),
                     dy = randn({kLinearTokens, 4}, 2);
    nn::load_global(params.find("up.weight"), w1);
    nn::load_global(params.find("down.weight"), w2);
    test::Pass pass(kLinearTokens, /*deferred=*/true);
    const auto r = test::differentiate(
        [&](const auto& in) { return down.forward(up.forward(in[0], pass.ctx), pass.ctx); },
        {randn({kLinearTokens, 4}, 1)}, dy);
    expect_close(r.grads[0], dy.matmul(w2).matmul(w1), kExactLinear);
    // Biases are sums, that of the second layer at once.
    EXPECT_EQ(pass.wgrad.size(), bias() ? (ranks() == 1 ? 2u : 1u) : 0u);
    pass.wgrad.drain();
    for (const nn::Param& param : params) {
      EXPECT_EQ(param.main_grad().defined(), param.trainable) << param.name();
      EXPECT_EQ(param.outstanding_uses(), 0) << param.name();
    }
    if (bias())
      expect_close(params.find("up.bias").main_grad(), shard(dy.matmul(w2).sum(0), 0, tp),
                   kExactLinear);
  });
}

TEST_P(ParallelLinear, ColumnThenRowIsTheUnsplitProduct) {
  const at::Tensor x = randn({kLinearTokens, 4}, 1), dy = randn({kLinearTokens, 4}, 2);
  run_ranks(ranks(), [&](const comm::Group& tp) {
    nn::ParamList params;
    const ColumnParallelLinear up(scope(params, tp) / "up",
                                  {.in = 4, .parts = {{"up", 12, 1}}, .bias = bias()}, tp);
    const RowParallelLinear down(scope(params, tp) / "down", {.in = 12, .out = 4, .bias = bias()},
                                 tp);
    const nn::ResidentStore store(params, at::kCPU);
    const at::Tensor w1 = randn({12, 4}, 3), w2 = randn({4, 12}, 4);
    nn::load_global(params.find("up.weight"), w1);
    nn::load_global(params.find("down.weight"), w2);
    test::Pass pass(kLinearTokens);
    const auto r = test::differentiate(
        [&](const auto& in) { return down.forward(up.forward(in[0], pass.ctx).relu(), pass.ctx); },
        {x}, dy);
    const auto expected = test::differentiate(
        [](const auto& in) { return in[0].matmul(in[1].t()).relu().matmul(in[2].t()); },
        {x, w1, w2}, dy);
    expect_close(r.y, expected.y, kExactLinear);
    expect_close(r.grads[0], expected.grads[0], kExactLinear);
    expect_close(params.find("up.weight").main_grad(), shard(expected.grads[1], 0, tp),
                 kExactLinear);
    expect_close(params.find("down.weight").main_grad(), shard(expected.grads[2], 1, tp),
                 kExactLinear);
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, ParallelLinear,
                         testing::Combine(testing::Values(1, 2, 3), testing::Bool()),
                         [](const auto& info) {
                           return std::to_string(std::get<0>(info.param)) +
                                  (std::get<1>(info.param) ? "_bias" : "_plain");
                         });

TEST(ParallelLinearErrors, SizesThatDoNotDivideAreAConfigError) {
  const comm::Group two; // the shapes are decided by the coordinates alone
  nn::ParamList params;
  const nn::Scope scope(params, at::kDouble, {{"tp", {0, 2}}});
  EXPECT_THROW(ColumnParallelLinear(scope / "c", {.in = 4, .parts = {{"q", 3, 2}}}, two),
               ConfigError);
  EXPECT_THROW(RowParallelLinear(scope / "r", {.in = 5, .out = 4}, two), ConfigError);
}

} // namespace
} // namespace pentatron::parallel
