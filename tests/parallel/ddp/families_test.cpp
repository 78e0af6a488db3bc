// Families of parameters: what frozen ones take, over which ranks those of experts are summed, what
// stays whole, and several types in one model.
#include "pentatron/parallel/ddp/data_parallel.h"

#include <ATen/ATen.h>

#include <map>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "pentatron/comm/collectives.h"
#include "pentatron/comm/rank_threads.h"
#include "pentatron/nn/memory/counting_allocator.h"
#include "pentatron/nn/module.h"
#include "pentatron/optim/optimizer.h"
#include "tests/support/ranks.h"
#include "tests/support/tensors.h"

namespace pentatron::parallel {
namespace {

using nn::MemoryCategory;
using nn::Pass;

constexpr int64_t kSize = 64 * 12;

comm::ParallelGroups groups_over(const comm::Group& dp, const DdpConfig& config) {
  return {dp, {}, data_parallel_groups("dp", dp.size(), config)};
}

class FamiliesOfStage : public testing::TestWithParam<int64_t> {};
INSTANTIATE_TEST_SUITE_P(Zero, FamiliesOfStage, testing::Values(0, 1, 2, 3));

/// Of a bf16 model with fp32 gradients and Adam, three of whose five parameters are frozen: they
/// cost 2 bytes an element and nothing else.
TEST_P(FamiliesOfStage, FrozenParametersTakeTheirValuesAlone) {
  nn::install_counting_allocator();
  const int64_t stage = GetParam(), frozen = 3, all = 5;
  test::run_ranks(4, [&](const comm::Group& dp) {
    const int me = comm::current_rank();
    const nn::MemorySnapshot before = nn::memory_snapshot(me);
    const auto held = [&](MemoryCategory category) {
      return nn::memory_snapshot(me)[category].current_bytes - before[category].current_bytes;
    };
    nn::ParamList params;
    const nn::Scope scope(params, at::kBFloat16, {});
    for (int64_t segment = 0; segment < all; ++segment)
      scope.of_segment(segment)
          .vector(std::to_string(segment), kSize, nn::Init::normal(1))
          .trainable = segment >= frozen;
    const DdpConfig config{.zero_stage = stage, .bucket_size = 1000};
    DataParallel store(params, at::kCPU, config, groups_over(dp, config));
    store.write_values([](nn::Param& param) { param.initialize(1); });
    optim::Optimizer optimizer({}, store.shards());
    const int64_t trained = (all - frozen) * kSize;
    // A step leaves two whole buffers of each kind that is cut, for the next one; so does writing
    // values.
    const auto expect_kept = [&](int64_t whole) {
      EXPECT_EQ(held(MemoryCategory::kParameters),
                2 * (stage >= 3 ? all * kSize / 4 + (2 + whole) * kSize : all * kSize));
      EXPECT_EQ(held(MemoryCategory::kGradients),
                4 * (stage >= 2 ? trained / 4 + whole * kSize : trained));
      EXPECT_EQ(held(MemoryCategory::kOptimizer), 12 * trained / (stage >= 1 ? 4 : 1));
    };
    expect_kept(0);
    std::map<std::string, at::Tensor> start;
    store.read_values([&](const nn::Param& param) { start[param.name()] = param.value().clone(); });
    store.begin_step();
    for (nn::Param& param : params) {
      store.acquire(param.segments().front(), Pass::kForward);
      EXPECT_TRUE(at::equal(param.value(), start.at(param.name())));
      if (param.trainable) param.add_use();
      store.release(param.segments().front(), Pass::kForward);
    }
    store.forwards_done();
    for (int64_t segment = all - 1; segment >= 0; --segment) {
      nn::Param& param = params.find(std::to_string(segment));
      store.acquire(segment, Pass::kBackward);
      EXPECT_EQ(param.main_grad().defined(), param.trainable);
      if (param.trainable) param.accumulate(at::ones({kSize}));
      store.release(segment, Pass::kBackward);
    }
    store.finish_gradients();
    optimizer.step(0.1, 0.1, 1);
    store.publish_values();
    store.wait_values();
    expect_kept(2);
    store.read_values([&](const nn::Param& param) {
      EXPECT_NE(at::equal(param.value(), start.at(param.name())), param.trainable) << param.name();
    });
  });
}

TEST_P(FamiliesOfStage, ValuesOfFrozenParametersArriveAfterLoading) {
  test::run_ranks(2, [&](const comm::Group& dp) {
    nn::ParamList params;
    const nn::Scope scope(params, at::kFloat, {});
    scope.vector("frozen", kSize, nn::Init::constant(1)).trainable = false;
    scope.vector("trained", kSize, nn::Init::constant(1));
    const DdpConfig config{.zero_stage = GetParam()};
    DataParallel store(params, at::kCPU, config, groups_over(dp, config));
    for (const nn::Shard& shard : store.shards()) shard.values.fill_(7);
    store.publish_all_values();
    store.wait_values();
    store.read_values([&](const nn::Param& param) {
      EXPECT_TRUE(param.value().eq(7).all().item<bool>()) << param.name();
    });
  });
}

/// Four data-parallel ranks with two groups of experts: of what rank r brings, experts are summed
/// over the ranks that have the same ones, dense parameters over all.
TEST_P(FamiliesOfStage, ExpertsAreSummedOverTheRanksThatHaveThem) {
  for (const int edp : {1, 2}) {
    test::run_ranks(4, [&](const comm::Group& world) {
      SCOPED_TRACE(fmt::format("edp {}", edp));
      const DdpConfig config{.zero_stage = GetParam(), .bucket_size = 100};
      std::vector<comm::NeededGroup> needed = {comm::NeededGroup::of_axes("ep")};
      for (const auto& [axis, size] : {std::pair{"dp", 4}, {"edp", edp}})
        for (comm::NeededGroup& group : data_parallel_groups(axis, size, config))
          needed.push_back(std::move(group));
      const comm::ParallelGroups groups(world, {.ep = 4 / edp}, needed);
      const comm::Group &ep = groups.get("ep"), &experts = groups.get("edp");
      ASSERT_EQ(experts.size(), edp);
      nn::ParamList params;
      // Dense parameters know nothing of experts: to them, ep is a part of dp.
      const nn::Scope dense(params, at::kDouble, {}),
          scope(params, at::kDouble, {{"ep", {ep.rank(), ep.size()}}});
      dense.vector("norm", 5, nn::Init::constant(1));
      const nn::ShardSpec spec{
          .name = {}, .shape = {4, 33}, .placements = {{"ep", nn::Placement::shard(0)}}};
      for (const char* name : {"fc1", "fc2"})
        scope.param(name, spec, nn::Init::constant(1)).group = nn::ReductionGroup::kExpert;
      dense.vector("head", 7, nn::Init::constant(1));
      DataParallel store(params, at::kCPU, config, groups);
      store.write_values([](nn::Param& param) { param.initialize(1); });
      const auto gradient = [&](const nn::Param& param, int rank) {
        return test::randn(param.shape(), static_cast<uint64_t>(100 * rank) +
                                              static_cast<uint64_t>(param.name().back()));
      };
      const auto summed = [&](const nn::Param& param) {
        const bool expert = param.group == nn::ReductionGroup::kExpert;
        const comm::Group& over = expert ? experts : groups.dp();
        return comm::all_reduce(gradient(param, world.rank()), comm::ReduceOp::kSum, over);
      };
      store.begin_step();
      for (nn::Param& param : params) {
        store.acquire(0, Pass::kForward);
        param.add_use();
        store.release(0, Pass::kForward);
      }
      store.forwards_done();
      store.acquire(0, Pass::kBackward);
      for (nn::Param& param : params) param.accumulate(gradient(param, world.rank()));
      store.release(0, Pass::kBackward);
      store.finish_gradients();
      std::map<std::string, at::Tensor> expected;
      double squares = 0;
      for (const nn::Param& param : params) {
        expected[param.name()] = summed(param);
        // Every rank that has it adds a share.
        squares += expected[param.name()].square().sum().item<double>() /
                   (param.group == nn::ReductionGroup::kExpert ? edp : 4);
      }
      for (const nn::Shard& shard : store.shards())
        for (const nn::Piece& piece : shard.pieces)
          test::expect_close(
              shard.gradients.narrow(0, piece.begin, piece.size),
              expected.at(piece.param->name()).flatten().narrow(0, piece.param_begin, piece.size),
              {1e-12, 1e-12});
      const auto over_all = [&](double x) {
        return comm::all_reduce(at::scalar_tensor(x, at::kDouble), comm::ReduceOp::kSum, world)
            .item<double>();
      };
      const double norm = over_all(squares);
      EXPECT_NEAR(over_all(store.counted_sum_of_squares().item<double>()), norm, 1e-12 * norm);
      for (const nn::Shard& shard : store.shards()) shard.values.sub_(shard.gradients);
      store.publish_values();
      store.read_values([&](const nn::Param& param) {
        test::expect_close(param.value(), 1 - expected.at(param.name()), {1e-12, 1e-12});
      });
    });
  }
}

TEST_P(FamiliesOfStage, WhatStaysWholeAndWhatIsOfAnotherTypeTrainLikeTheRest) {
  for (const int ranks : {1, 3}) {
    test::run_ranks(2 * ranks, [&](const comm::Group& world) {
      const DdpConfig config{.zero_stage = GetParam(), .bucket_size = 100};
      std::vector<comm::NeededGroup> needed = data_parallel_groups("dp", ranks, config);
      needed.push_back(comm::NeededGroup::of_axes("tp"));
      const comm::ParallelGroups groups(world, {.tp = 2}, needed);
      nn::ParamList params;
      for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
        const nn::Scope scope(params, dtype, {{"tp", {groups.tp().rank(), 2}}},
                              c10::toString(dtype));
        for (int64_t segment = 0; segment < 3; ++segment) {
          nn::Param& weight = scope.of_segment(segment).param(
              fmt::format("w{}", segment), {.name = {}, .shape = {segment + 3, 50}}, {});
          weight.whole = true;
          scope.of_segment(segment).param(
              fmt::format("b{}", segment),
              {.name = {}, .shape = {50}, .placements = {{"tp", nn::Placement::partial()}}}, {});
        }
      }
      DataParallel store(params, at::kCPU, config, groups);
      store.begin_step();
      for (nn::Param& param : params) param.add_use();
      store.forwards_done();
      for (int64_t segment = 2; segment >= 0; --segment) {
        store.acquire(segment, Pass::kBackward);
        for (nn::Param& param : params) {
          if (param.segments().front() != segment) continue;
          EXPECT_EQ(param.main_grad().scalar_type(), param.dtype());
          param.accumulate(at::full(param.shape(), 1.0 / 3, param.main_grad().options()));
        }
        store.release(segment, Pass::kBackward);
      }
      store.finish_gradients();
      for (const nn::Shard& shard : store.shards())
        for (const nn::Piece& piece : shard.pieces) {
          const bool whole = piece.param->whole, fp64 = piece.param->dtype() == at::kDouble;
          EXPECT_TRUE(!whole || piece.size == piece.param->numel());
          // Norms and biases are addends on tensor ranks, too.
          const double sum = ranks * (whole ? 1 : 2) / 3.0;
          test::expect_close(shard.gradients.narrow(0, piece.begin, piece.size).to(at::kDouble),
                             at::full({piece.size}, sum, at::kDouble), {fp64 ? 1e-14 : 1e-6, 0});
          shard.values.narrow(0, piece.begin, piece.size).fill_(3);
        }
      store.publish_values();
      store.read_values([&](const nn::Param& param) {
        EXPECT_TRUE(param.value().eq(3).all().item<bool>()) << param.name();
      });
    });
  }
}

} // namespace
} // namespace pentatron::parallel
