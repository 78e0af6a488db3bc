// The engine with gradients that a test brings itself: what shards() hold after finish_gradients(),
// and what values() are after publish_values(), under every policy and layout.
#include "pentatron/parallel/ddp/data_parallel.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "pentatron/base/error.h"
#include "pentatron/comm/collectives.h"
#include "pentatron/nn/module.h"
#include "tests/support/ranks.h"
#include "tests/support/tensors.h"

namespace pentatron::parallel {
namespace {

using nn::Pass;
using nn::Placement;

struct Layout {
  int tp = 1, dp = 1, pp = 1;
  int kv_heads = 1; // below tp: groups of tp ranks hold the same head
};

struct Case {
  Layout layout;
  DdpConfig ddp;
  bool all_forwards_first = false;
  int64_t microbatches = 2;
};

/// Where a rank stands.
struct Place {
  int tp = 0, dp = 0, stage = 0;
};

constexpr int64_t kRowsOfHead = 2, kWidth = 5, kQueryHeads = 4;

/// The stages that hold a parameter of the name, in the order that its sum is made in: "table" and
/// "bias" have copies, and so do "lines" and "columns", which two stages register the other way
/// round.
std::vector<int> holders_of(const std::string& name, int pp) {
  std::vector<int> all;
  for (int stage = 0; stage < pp; ++stage) all.push_back(stage);
  if (name == "table") return pp == 1 ? all : std::vector<int>{0, pp - 1};
  if (name == "bias") return {all.begin() + (pp > 2 ? 1 : 0), all.end()};
  if (name == "lines") return {all.rbegin(), all.rend()};
  if (name == "columns") return all;
  return {};
}

/// The parameters of one stage. Segments are numbered through the stages; the first and the last
/// one share a table.
void add_parameters(nn::ParamList& params, const Layout& layout, const Place& at) {
  const nn::Scope root(params, at::kDouble, {{"tp", {at.tp, layout.tp}}});
  const auto add = [](const nn::Scope& scope, const std::string& name, std::vector<int64_t> shape,
                      Placement tp, std::vector<nn::FusedPart> parts = {}) -> nn::Param& {
    return scope.param(name,
                       {.name = {},
                        .shape = std::move(shape),
                        .parts = std::move(parts),
                        .placements = {{"tp", tp}}},
                       nn::Init::normal(1));
  };
  const auto add_shared = [&](const std::string& name, int64_t segment, Placement tp) {
    const std::vector<int> holders = holders_of(name, layout.pp);
    const auto found = std::find(holders.begin(), holders.end(), at.stage);
    if (found == holders.end()) return;
    root.of_segment(segment).shared_param(
        name, {.name = {}, .shape = {12, 7}, .placements = {{"tp", tp}}}, nn::Init::normal(1),
        {static_cast<int>(found - holders.begin()), static_cast<int>(holders.size())});
  };
  const auto add_table = [&](int64_t segment) {
    add_shared("table", segment, Placement::shard(0));
  };
  const int64_t first = 10 * at.stage; // stages leave numbers out, as chunks of a pipeline do
  if (at.stage == 0) add_table(first);
  for (int64_t segment = first + 1; segment <= first + 2; ++segment) {
    const nn::Scope scope = root.of_segment(segment) / ("layer" + std::to_string(segment));
    add(scope, "norm", {kWidth}, Placement::partial());
    add(scope, "qkv", {(kQueryHeads + layout.kv_heads) * kRowsOfHead, kWidth}, Placement::shard(0),
        {{"q", kQueryHeads, kRowsOfHead, false}, {"k", layout.kv_heads, kRowsOfHead, true}});
    add(scope, "gate", {13}, Placement::replicate());
    add(scope, "down", {67, 4}, Placement::shard(1));
    if (segment == first + 1)
      add(scope, "frozen", {3, 3}, Placement::replicate()).trainable = false;
    if (segment == first + 1) add(scope, "unused", {9}, Placement::replicate());
  }
  const bool even = at.stage % 2 == 0;
  for (const char* name : {even ? "lines" : "columns", even ? "columns" : "lines"})
    add_shared(name, first + 1, Placement::replicate());
  add_shared("bias", first + 2, Placement::partial());
  if (at.stage == layout.pp - 1 && layout.pp > 1) add_table(first + 3);
  if (layout.pp == 1) params.find("table").used_by(first + 3);
}

bool gets_gradients(const nn::Param& param) {
  return !param.name().ends_with("frozen") && !param.name().ends_with("unused");
}

/// The gradient that a rank computes of one microbatch: an addend, or the same on all tp ranks if
/// the parameter is replicated there.
at::Tensor own_gradient(const nn::Param& param, Place at, int64_t step, int64_t microbatch) {
  const auto kind = param.spec().placement("tp").kind;
  if (kind == Placement::Kind::kReplicate) at.tp = 0;
  uint64_t seed = 17;
  for (const char c : param.name()) seed = 31 * seed + static_cast<unsigned char>(c);
  for (const int64_t i : {int64_t{at.tp}, int64_t{at.dp}, int64_t{at.stage}, step, microbatch})
    seed = 1009 * seed + static_cast<uint64_t>(i);
  return test::randn(param.shape(), seed % 1'000'003);
}

/// Rows of the local qkv that several tp ranks hold.
at::Tensor shared_rows(const nn::Param& param, const at::Tensor& x, const Layout& layout) {
  if (!param.name().ends_with("qkv") || layout.kv_heads >= layout.tp) return x.narrow(0, 0, 0);
  return x.narrow(0, x.size(0) - kRowsOfHead, kRowsOfHead);
}

/// What the gradient must be on this rank: sums over dp, microbatches, all stages that hold it,
/// and tp ranks where the rank holds addends.
at::Tensor true_gradient(const nn::Param& param, const Case& c, const Place& at, int64_t step) {
  at::Tensor sum = at::zeros(param.shape(), at::kDouble);
  if (!gets_gradients(param)) return sum;
  const auto total_of = [&](int tp) {
    at::Tensor total = at::zeros(param.shape(), at::kDouble);
    std::vector<int> stages = holders_of(param.name(), c.layout.pp);
    if (stages.empty()) stages = {at.stage};
    for (const int stage : stages) {
      for (int d = 0; d < c.layout.dp; ++d) {
        for (int64_t m = 0; m < c.microbatches; ++m)
          total += own_gradient(param, {tp, d, stage}, step, m);
      }
    }
    return total;
  };
  const bool partial = param.spec().placement("tp").kind == Placement::Kind::kPartial;
  const int per_head = std::max(1, c.layout.tp / c.layout.kv_heads);
  for (int tp = 0; tp < c.layout.tp; ++tp) {
    const at::Tensor total = total_of(tp);
    if (partial || tp == at.tp) {
      sum += total;
    } else if (tp / per_head == at.tp / per_head) {
      shared_rows(param, sum, c.layout).add_(shared_rows(param, total, c.layout));
    }
  }
  return sum;
}

/// The squares that this rank adds to the gradient norm, if every element is to count once.
double own_squares(const nn::Param& param, const Case& c, const Place& at,
                   const at::Tensor& gradient) {
  const std::vector<int> holders = holders_of(param.name(), c.layout.pp);
  if (!holders.empty() && at.stage != holders.front()) return 0;
  const bool split = param.spec().placement("tp").kind == Placement::Kind::kShard;
  if (!split && at.tp > 0) return 0;
  double squares = gradient.square().sum().item<double>();
  const int per_head = std::max(1, c.layout.tp / c.layout.kv_heads);
  if (at.tp % per_head != 0)
    squares -= shared_rows(param, gradient, c.layout).square().sum().item<double>();
  return squares;
}

/// As parallelize lists them for a run.
std::vector<comm::NeededGroup> needed(const Case& c) {
  std::vector<comm::NeededGroup> groups = {comm::NeededGroup::of_axes("tp"),
                                           comm::NeededGroup::of_axes("pp")};
  for (comm::NeededGroup& group : data_parallel_groups("dp", c.layout.dp, c.ddp))
    groups.push_back(std::move(group));
  if (const int share = c.layout.tp / c.layout.kv_heads; share > 1) {
    std::vector<std::vector<int>> parts(static_cast<size_t>(c.layout.kv_heads));
    for (int rank = 0; rank < c.layout.tp; ++rank)
      parts[static_cast<size_t>(rank / share)].push_back(rank);
    groups.push_back({nn::kTpReplicaAxis, "tp", std::move(parts)});
  }
  for (const char* name : {"table", "lines", "columns", "bias"})
    if (const std::vector<int> holders = holders_of(name, c.layout.pp); holders.size() > 1)
      groups.push_back({nn::shared_axis(name), "pp", {holders}});
  return groups;
}

class Model {
 public:
  Model(const Case& c, const comm::Group& world)
      : case_(c), world_(world),
        groups_(world, {.tp = c.layout.tp, .dp = c.layout.dp, .pp = c.layout.pp}, needed(c)),
        at_{groups_.tp().rank(), groups_.dp().rank(), groups_.pp().rank()} {
    add_parameters(params_, c.layout, at_);
    store_ = std::make_unique<DataParallel>(params_, at::kCPU, c.ddp, groups_);
    store_->write_values([](nn::Param& param) { param.initialize(5); });
    store_->read_values([&](const nn::Param& param) {
      nn::ParamList again;
      nn::Param& fresh = again.add(param.spec(), nn::Init::normal(1), at::kDouble, param.where());
      fresh.set_value(at::zeros(fresh.shape(), at::kDouble));
      fresh.initialize(5);
      values_[param.name()] = fresh.value();
      test::expect_close(param.value(), fresh.value());
    });
  }

  void train_step(int64_t step) {
    SCOPED_TRACE(fmt::format("step {}", step));
    store_->begin_step();
    for (int64_t m = 0; m < case_.microbatches; ++m) {
      forward();
      if (m == case_.microbatches - 1) store_->forwards_done();
      if (!case_.all_forwards_first) backward(step, m);
    }
    for (int64_t m = 0; case_.all_forwards_first && m < case_.microbatches; ++m) backward(step, m);
    store_->finish_gradients();
    check_gradients(step);
    // A pass that ends early: what it gathered ahead is old after the update.
    store_->acquire(segments().front(), Pass::kForward);
    store_->release(segments().front(), Pass::kForward);
    for (const nn::Shard& shard : store_->shards())
      if (shard.trainable()) shard.values.sub_(shard.gradients);
    store_->publish_values();
    for (const nn::Param& param : params_)
      values_[param.name()] = values_[param.name()] - true_gradient(param, case_, at_, step);
  }

  /// Every value that a forward pass would see.
  void forward() {
    for (const int64_t segment : segments()) {
      store_->acquire(segment, Pass::kForward);
      for (nn::Param* param : of_segment(segment)) {
        test::expect_close(param->value(), values_[param->name()], {1e-12, 1e-12});
        if (param->trainable && gets_gradients(*param)) param->add_use();
      }
      store_->release(segment, Pass::kForward);
    }
  }

  void check_values() {
    store_->read_values([&](const nn::Param& param) {
      test::expect_close(param.value(), values_[param.name()], {1e-12, 1e-12});
    });
  }

 private:
  void backward(int64_t step, int64_t microbatch) {
    const std::vector<int64_t> forward_order = segments();
    for (auto segment = forward_order.rbegin(); segment != forward_order.rend(); ++segment) {
      store_->acquire(*segment, Pass::kBackward);
      for (nn::Param* param : of_segment(*segment)) {
        if (!gets_gradients(*param)) continue;
        test::expect_close(param->value(), values_[param->name()], {1e-12, 1e-12});
        // A table on one stage is used by two segments: a half each.
        const double share = param->segments().size() > 1 ? 0.5 : 1;
        param->accumulate(own_gradient(*param, at_, step, microbatch) * share);
      }
      store_->release(*segment, Pass::kBackward);
    }
  }

  void check_gradients(int64_t step) {
    std::map<std::string, int64_t> held;
    double squares = 0;
    for (const nn::Param& param : params_) {
      held[param.name()] = 0;
      squares +=
          own_squares(param, case_, at_, true_gradient(param, case_, at_, step)) / case_.layout.dp;
    }
    for (const nn::Shard& shard : store_->shards()) {
      for (const nn::Piece& piece : shard.pieces) {
        SCOPED_TRACE(piece.param->name());
        EXPECT_EQ(shard.trainable(), piece.param->trainable);
        held[piece.param->name()] += piece.size;
        if (!shard.trainable()) continue;
        const at::Tensor expected = true_gradient(*piece.param, case_, at_, step).flatten();
        test::expect_close(shard.gradients.narrow(0, piece.begin, piece.size),
                           expected.narrow(0, piece.param_begin, piece.size), {1e-12, 1e-12});
      }
    }
    const auto summed = [](double x, const comm::Group& group) {
      return comm::all_reduce(at::scalar_tensor(x, at::kDouble), comm::ReduceOp::kSum, group)
          .item<double>();
    };
    const bool sharded = case_.ddp.zero_stage > 0;
    const int64_t copies =
        sharded ? case_.ddp.num_distributed_optimizer_instances : case_.layout.dp;
    for (const nn::Param& param : params_) {
      EXPECT_EQ(summed(static_cast<double>(held[param.name()]), groups_.dp()),
                static_cast<double>(copies * param.numel()))
          << param.name();
      EXPECT_EQ(param.outstanding_uses(), 0) << param.name();
    }
    const double norm = std::sqrt(summed(squares, world_));
    EXPECT_NEAR(std::sqrt(summed(store_->counted_sum_of_squares().item<double>(), world_)), norm,
                1e-12 * norm);
  }

  std::vector<int64_t> segments() const {
    std::vector<int64_t> all;
    for (int64_t i = at_.stage == 0 ? 0 : 1; i <= 3; ++i) {
      if (i < 3 || case_.layout.pp == 1 || at_.stage == case_.layout.pp - 1)
        all.push_back(10 * at_.stage + i);
    }
    return all;
  }
  std::vector<nn::Param*> of_segment(int64_t segment) {
    std::vector<nn::Param*> result;
    for (nn::Param& param : params_) {
      const auto& all = param.segments();
      if (std::find(all.begin(), all.end(), segment) != all.end()) result.push_back(&param);
    }
    return result;
  }

  Case case_;
  comm::Group world_;
  comm::ParallelGroups groups_;
  Place at_;
  nn::ParamList params_;
  std::unique_ptr<DataParallel> store_;
  std::map<std::string, at::Tensor> values_; // as they must be
};

void run(const Case& c) {
  test::run_ranks(c.layout.tp * c.layout.dp * c.layout.pp, [&](const comm::Group& world) {
    SCOPED_TRACE(fmt::format(
        "tp {} dp {} pp {} kv {}, zero {} bucket {} overlap {}{} instances {} {}", c.layout.tp,
        c.layout.dp, c.layout.pp, c.layout.kv_heads, c.ddp.zero_stage, c.ddp.bucket_size,
        c.ddp.overlap_grad_reduce, c.ddp.overlap_param_gather,
        c.ddp.num_distributed_optimizer_instances, c.all_forwards_first ? "gpipe" : "1f1b"));
    Model model(c, world);
    for (int64_t step = 0; step < 2; ++step) model.train_step(step);
    model.forward(); // an evaluation
    model.check_values();
  });
}

class EveryPolicy : public testing::TestWithParam<int64_t> {
 protected:
  void run_with(const Layout& layout, std::vector<int64_t> instances = {1}) {
    for (const bool overlap : {true, false}) {
      for (const int64_t bucket_size : {1, 300, 40'000'000}) {
        for (const int64_t n : instances) {
          run({.layout = layout,
               .ddp = {.zero_stage = GetParam(),
                       .bucket_size = bucket_size,
                       .overlap_grad_reduce = overlap,
                       .overlap_param_gather = overlap,
                       .num_distributed_optimizer_instances = n},
               .all_forwards_first = bucket_size == 300});
        }
      }
    }
  }
};

TEST_P(EveryPolicy, SumsOverDataRanks) {
  for (const int dp : {1, 2, 3}) run_with({.dp = dp});
}

TEST_P(EveryPolicy, SumsWhatIsPartialOverTensorRanks) {
  run_with({.tp = 2, .dp = 2});
  run_with({.tp = 4, .dp = 2, .kv_heads = 2});
}

TEST_P(EveryPolicy, SumsTheTableOfTwoStages) {
  run_with({.dp = 2, .pp = 2});
  run_with({.tp = 2, .dp = 2, .pp = 2});
}

TEST_P(EveryPolicy, SumsWhatSeveralStagesShareInAnyOrder) {
  run_with({.dp = 1, .pp = 3});
  run_with({.tp = 2, .dp = 2, .pp = 4});
}

using EveryPolicyThatSplits = EveryPolicy;

TEST_P(EveryPolicyThatSplits, HoldsCopiesInInstances) {
  run_with({.dp = 4}, {2, 4});
  run_with({.tp = 2, .dp = 4, .pp = 2}, {2});
}

INSTANTIATE_TEST_SUITE_P(Zero, EveryPolicy, testing::Values(0, 1, 2, 3));
INSTANTIATE_TEST_SUITE_P(Zero, EveryPolicyThatSplits, testing::Values(1, 2, 3));

TEST(DataParallel, RefusesInstancesThatDoNotDivideTheRanks) {
  const std::string error = test::error_of([&] {
    data_parallel_groups("dp", 4, {.zero_stage = 1, .num_distributed_optimizer_instances = 3});
  });
  EXPECT_NE(error.find("num_distributed_optimizer_instances=3 does not divide the 4"),
            std::string::npos)
      << error;
}

TEST(DataParallel, TellsOfAGradientThatComesTooLate) {
  nn::ParamList params;
  nn::Param& w = nn::Scope(params, at::kDouble, {}).vector("w", 3, {});
  DataParallel store(params, at::kCPU, {}, {});
  store.begin_step();
  store.forwards_done();
  w.add_use();
  const std::string error = test::error_of([&] { w.accumulate(at::ones({3}, at::kDouble)); });
  EXPECT_NE(error.find("w received a gradient after its bucket was reduced"), std::string::npos)
      << error;
}

/// A parameter of ones as gradient of one microbatch, whose forward pass is the step's last.
struct OneParameter {
  OneParameter(const DdpConfig& config, const comm::Group& dp) {
    param = &nn::Scope(params, at::kDouble, {}).vector("w", 3, {});
    store = std::make_unique<DataParallel>(
        params, at::kCPU, config,
        comm::ParallelGroups(dp, {}, data_parallel_groups("dp", dp.size(), config)));
    store->begin_step();
  }
  void add_gradient() {
    param->add_use();
    param->accumulate(at::ones({3}, at::kDouble));
  }
  nn::ParamList params;
  nn::Param* param;
  std::unique_ptr<DataParallel> store;
};

TEST(DataParallel, StartsOverlappedReductionsWithTheLastGradient) {
  for (const bool overlap : {true, false}) {
    OneParameter one({.overlap_grad_reduce = overlap}, {});
    one.param->add_use();
    one.store->forwards_done();
    one.param->accumulate(at::ones({3}, at::kDouble));
    // Only a bucket that is not on its way takes another gradient.
    if (overlap) {
      EXPECT_THROW(one.add_gradient(), Error);
    } else {
      EXPECT_NO_THROW(one.add_gradient());
    }
  }
}

TEST(DataParallel, ReducesScratchAfterBackwardOrLeavesItToFlush) {
  for (const bool defer : {true, false}) {
    test::run_ranks(2, [&](const comm::Group& dp) {
      OneParameter one({.zero_stage = 2}, dp);
      one.store->defer_to_flush(defer);
      one.add_gradient();
      one.store->release(0, Pass::kBackward);
      EXPECT_EQ(one.param->main_grad().sum().item<double>(), defer ? 3 : 0);
      one.store->flush();
      EXPECT_EQ(one.param->main_grad().sum().item<double>(), 0);
      one.store->finish_gradients();
      for (const nn::Shard& shard : one.store->shards()) {
        for (const nn::Piece& piece : shard.pieces)
          test::expect_close(shard.gradients.narrow(0, piece.begin, piece.size),
                             at::full({piece.size}, 2.0, at::kDouble));
      }
    });
  }
}

TEST(DataParallel, LendsGradientsWithoutWhatTheMemoryHeldBefore) {
  // The scratch of segment 1 is that of segment 0 again, where gaps and "unused" hold its gradient.
  test::run_ranks(2, [&](const comm::Group& dp) {
    nn::ParamList params;
    const nn::Scope root(params, at::kDouble, {});
    nn::Param& full = root.of_segment(0).vector("full", 512, {});
    root.of_segment(1).vector("unused", 70, {});
    nn::Param& small = root.of_segment(1).vector("small", 3, {});
    const DdpConfig config = {.zero_stage = 2};
    DataParallel store(params, at::kCPU, config,
                       comm::ParallelGroups(dp, {}, data_parallel_groups("dp", 2, config)));
    store.begin_step();
    for (nn::Param* const param : {&full, &small}) {
      param->add_use();
      param->accumulate(at::ones(param->shape(), at::kDouble));
      store.release(param == &full ? 0 : 1, Pass::kBackward);
      store.flush();
    }
    store.finish_gradients();
    double sum = 0;
    for (const nn::Shard& shard : store.shards()) sum += shard.gradients.sum().item<double>();
    const at::Tensor total = at::full({1}, sum, at::kDouble);
    comm::all_reduce_(total, comm::ReduceOp::kSum, dp);
    EXPECT_EQ(total.item<double>(), 2 * (512 + 3));
  });
}

TEST(DataParallel, GathersUpdatedValuesWithoutWaiting) {
  for (const int64_t stage : {1, 2}) {
    test::run_ranks(2, [&](const comm::Group& dp) {
      OneParameter one({.zero_stage = stage}, dp);
      for (const nn::Shard& shard : one.store->shards()) shard.values.fill_(7);
      // Rank 1 publishes after rank 0 has: if rank 0 waited in it, both would wait for ever.
      const at::Tensor note = at::zeros({1});
      if (dp.rank() == 1) comm::recv(note, 0, dp);
      one.store->publish_values();
      if (dp.rank() == 0) comm::send(note, 1, dp);
      one.store->acquire(0, Pass::kForward);
      test::expect_close(one.param->value(), at::full({3}, 7.0, at::kDouble));
    });
  }
}

TEST(DataParallel, WaitsForUpdatedValuesWithoutOverlap) {
  for (const int64_t stage : {1, 2}) {
    test::run_ranks(2, [&](const comm::Group& dp) {
      OneParameter one({.zero_stage = stage, .overlap_param_gather = false}, dp);
      for (const nn::Shard& shard : one.store->shards()) shard.values.fill_(7);
      // Rank 1 publishes a while after rank 0 has begun to: rank 0 has to wait for its part.
      const at::Tensor note = at::zeros({1});
      if (dp.rank() == 0) comm::send(note, 1, dp);
      if (dp.rank() == 1) {
        comm::recv(note, 0, dp);
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
      }
      one.store->publish_values();
      test::expect_close(one.param->value(), at::full({3}, 7.0, at::kDouble));
    });
  }
}

TEST(DdpConfig, RefusesInstancesOfWhatIsNotSplit) {
  config::Violations violations;
  DdpConfig{.num_distributed_optimizer_instances = 2}.validate(violations, "ddp");
  EXPECT_NE(violations.text().find("ddp.num_distributed_optimizer_instances=2 has no effect"),
            std::string::npos);
}

} // namespace
} // namespace pentatron::parallel
