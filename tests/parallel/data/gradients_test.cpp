#include "pentatron/parallel/data/gradients.h"

#include "pentatron/comm/mesh.h"
#include "pentatron/nn/module.h"
#include "tests/nn/op_fixture.h"
#include "tests/support/ranks.h"

#include <gtest/gtest.h>

namespace pentatron::parallel {
namespace {

using nn::Placement;

/// The gradient that a rank computed, before any reduction.
at::Tensor own_gradient(const nn::Param& param, int tp, int dp) {
  const auto seed = static_cast<uint64_t>(100 * param.name().size() + 10 * tp + dp);
  return test::randn(param.shape(), seed);
}

TEST(ReduceGradients, SumsOverDataAndWhatIsPartialOverTensor) {
  for (const int tp_size : {1, 2}) {
    for (const int dp_size : {1, 2, 3}) {
      test::run_ranks(tp_size * dp_size, [&](const comm::Group& world) {
        const comm::Mesh mesh(world, {.tp = tp_size, .dp = dp_size});
        const comm::Group &tp = mesh.axis("tp"), &dp = mesh.axis("dp");
        nn::ParamList params;
        const nn::Scope scope(params, at::kDouble, {{"tp", {tp.rank(), tp.size()}}});
        const auto add = [&](const std::string& name, std::vector<int64_t> shape, Placement p) {
          scope.param(name, {.name = {}, .shape = std::move(shape), .placements = {{"tp", p}}}, {});
        };
        add("split", {4, 3}, Placement::shard(0));
        add("partial", {5}, Placement::partial());
        add("replicated", {7}, Placement::replicate());
        add("partial_too", {2, 2}, Placement::partial());
        const nn::ResidentStore store(params, at::kCPU);
        for (const nn::Param& param : params)
          at::Tensor(param.main_grad()).copy_(own_gradient(param, tp.rank(), dp.rank()));
        reduce_gradients(store, dp, tp);
        for (const nn::Param& param : params) {
          SCOPED_TRACE(param.name());
          const bool partial = param.spec().placement("tp").kind == Placement::Kind::kPartial;
          at::Tensor expected = at::zeros(param.shape(), at::kDouble);
          for (int d = 0; d < dp_size; ++d) {
            for (int t = 0; t < tp_size; ++t) {
              if (partial || t == tp.rank()) expected += own_gradient(param, t, d);
            }
          }
          test::expect_close(param.main_grad(), expected, {1e-13, 1e-13});
        }
      });
    }
  }
}

TEST(ReduceGradients, EveryReplicaEndsWithTheSameBits) {
  std::vector<at::Tensor> results(3);
  test::run_ranks(3, [&](const comm::Group& dp) {
    nn::ParamList params;
    nn::Scope(params, at::kFloat, {}).vector("w", 1000, {});
    const nn::ResidentStore store(params, at::kCPU);
    at::Tensor(params.find("w").main_grad())
        .copy_(test::randn({1000}, static_cast<uint64_t>(dp.rank()) + 1));
    reduce_gradients(store, dp, {});
    results[static_cast<size_t>(dp.rank())] = params.find("w").main_grad().clone();
  });
  EXPECT_TRUE(test::same_bits(results[0], results[1]));
  EXPECT_TRUE(test::same_bits(results[0], results[2]));
}

} // namespace
} // namespace pentatron::parallel
