// Linear layers split over ranks against the same product on one.
#include "pentatron/parallel/tensor/linear.h"

#include "pentatron/base/error.h"
#include "pentatron/comm/recorder.h"
#include "pentatron/kernels/selection/op_class.h"
#include "pentatron/kernels/selection/selection.h"
#include "pentatron/nn/adapter.h"
#include "pentatron/nn/param_store.h"
#include "tests/nn/op_fixture.h"
#include "tests/support/ranks.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <memory>
#include <vector>

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

/// Of products dy W, which give the gradient of an input.
bool multiplies_by_weights(const kernels::AskedClasses& asked) {
  return std::ranges::any_of(asked.all(), [](const kernels::OpClass c) {
    return kernels::class_name(c).starts_with("gemm float32 nn ");
  });
}

/// Where nothing before trains.
TEST_P(ParallelLinear, OfAnInputThatNeedsNoGradientThereIsNoProduct) {
  constexpr int64_t kTokens = 6;
  const nn::AdapterPlan plan{.weights = {{"weight", {{.name = {}, .rank = 2, .scale = 0.5}}}}};
  struct Seen {
    size_t operations = 0;
    std::vector<at::Tensor> gradients; ///< of parameters
  };
  for (const bool adapted : {false, true})
    for (const bool sequence : {false, true}) {
      SCOPED_TRACE(fmt::format("adapted {} sequence {}", adapted, sequence));
      std::array<Seen, 2> seen; // of rank 0, without and with a gradient of the input
      for (const bool wanted : {false, true}) {
        const kernels::AskedClasses asked;
        run_ranks(ranks(), [&](const comm::Group& group) {
          const auto recorder = std::make_shared<comm::Recorder>();
          const TensorParallel tp(comm::recorded(group, recorder), sequence,
                                  /*overlap_products=*/false);
          nn::ParamList params;
          const nn::Scope plain(params, at::kFloat, {{"tp", {tp.rank(), tp.size()}}});
          const ColumnParallelLinear layer(adapted ? plain.with_adapters(&plan) : plain,
                                           {.in = 4, .parts = {{"up", 12, 1}}, .bias = bias()}, tp);
          for (const char* const name : {"weight", "bias"})
            if (nn::Param* const param = params.find_or_null(name)) param->trainable = !adapted;
          const nn::ResidentStore store(params, at::kCPU);
          uint64_t seed = 0;
          for (nn::Param& param : params) nn::load_global(param, randn(param.spec().shape, ++seed));
          test::Pass pass(kTokens);
          const at::Tensor all = randn({kTokens, 4}, 11, at::kFloat),
                           x = (tp.sequence ? shard(all, 0, group) : all).clone(),
                           dy = shard(randn({kTokens, 12}, 12, at::kFloat), 1, group);
          x.requires_grad_(wanted);
          const at::Tensor y = layer.forward(x, pass.ctx);
          recorder->enable(true);
          y.backward(dy);
          recorder->enable(false);
          EXPECT_EQ(x.grad().defined(), wanted);
          for (const nn::Param& param : params)
            EXPECT_EQ(param.outstanding_uses(), 0) << param.name();
          if (group.rank() != 0) return;
          Seen& mine = seen[wanted ? 1 : 0];
          mine.operations = recorder->take().size();
          for (const nn::Param& param : params)
            if (param.trainable) mine.gradients.push_back(param.main_grad().clone());
        });
        EXPECT_EQ(multiplies_by_weights(asked), wanted);
      }
      EXPECT_EQ(seen[1].operations, seen[0].operations + (ranks() > 1 ? 1 : 0))
          << "the sum of the gradient over the ranks";
      ASSERT_EQ(seen[0].gradients.size(), seen[1].gradients.size());
      EXPECT_FALSE(seen[0].gradients.empty());
      for (size_t i = 0; i < seen[0].gradients.size(); ++i)
        EXPECT_TRUE(at::equal(seen[0].gradients[i], seen[1].gradients[i])) << i;
    }
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
