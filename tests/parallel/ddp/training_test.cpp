// A small model trained with Adam under every policy is the one that one rank trains.
#include "pentatron/parallel/ddp/data_parallel.h"

#include <ATen/ATen.h>

#include <cmath>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "pentatron/comm/collectives.h"
#include "pentatron/nn/module.h"
#include "pentatron/nn/ops/ops.h"
#include "pentatron/nn/segment.h"
#include "pentatron/optim/optimizer.h"
#include "tests/nn/chain.h"
#include "tests/nn/op_fixture.h"
#include "tests/support/ranks.h"

namespace pentatron::parallel {
namespace {

using nn::Param;

constexpr int64_t kVocab = 11, kHidden = 6, kTokens = 4, kSamples = 12, kBlocks = 3;

/// Ids to rows of the table.
class Table final : public nn::Segment {
 public:
  explicit Table(Param& table) : table_(&table) {}
  std::string name() const override { return "table"; }
  Output forward(const std::vector<at::Tensor>&, const nn::ForwardContext& ctx) const override {
    return {.flows = {nn::embedding(ctx.batch->field("input_ids"), *table_, nullptr, 0, ctx)},
            .loss = {}};
  }

 private:
  Param* table_;
};

/// x + silu(norm(x) W^T + b)
class Block final : public nn::Segment {
 public:
  explicit Block(const nn::Scope& scope)
      : norm_(&scope.vector("norm", kHidden, nn::Init::constant(1))),
        weight_(&scope.param("weight", {.name = {}, .shape = {kHidden, kHidden}},
                             nn::Init::normal(0.5))),
        bias_(&scope.vector("bias", kHidden, nn::Init::normal(0.5))) {
    scope.vector("unused", 7, nn::Init::normal(1));
  }
  std::string name() const override { return "block"; }
  bool recomputable() const override { return true; }
  Output forward(const std::vector<at::Tensor>& taken,
                 const nn::ForwardContext& ctx) const override {
    const at::Tensor& x = taken[0];
    const at::Tensor y = nn::linear(nn::norm(x, *norm_, nullptr, {}, ctx), *weight_, bias_, ctx);
    return {.flows = {x + nn::activation(y, kernels::Activation::kSilu, false)}, .loss = {}};
  }

 private:
  Param *norm_, *weight_, *bias_;
};

/// A loss of the products with all rows of the table.
class Head final : public nn::Segment {
 public:
  explicit Head(Param& table) : table_(&table) {}
  std::string name() const override { return "head"; }
  Output forward(const std::vector<at::Tensor>& taken,
                 const nn::ForwardContext& ctx) const override {
    const at::Tensor y = nn::linear(taken[0], *table_, nullptr, ctx);
    return {.flows = {},
            .loss = (y.to(nn::acc_dtype(y.scalar_type())) - 0.3).square().sum() *
                    (1.0 / (kSamples * kTokens))};
  }

 private:
  Param* table_;
};

struct Options {
  at::ScalarType dtype = at::kDouble;
  bool tied = false;
  bool table_frozen = false; ///< tied or not
  bool train_all = false;    ///< of the oracle, which throws gradients away
  bool deferred = false;
  bool recompute = false;
  bool all_forwards_first = false;
  int64_t micro_batch = 1; ///< samples
  int64_t steps = 3;
};

bool is_frozen(const Param& param, const Options& options) {
  return param.name() == "block1.bias" || param.name() == "block2.weight" ||
         (options.table_frozen && param.name() == "table");
}

struct Trained {
  std::vector<double> losses, norms;
  std::map<std::string, at::Tensor> weights;
};

struct TestModel {
  explicit TestModel(const Options& options) {
    const nn::Scope root(params, options.dtype, {});
    const auto table = [&](int64_t segment, const std::string& name) -> Param& {
      return root.of_segment(segment).param(name, {.name = {}, .shape = {kVocab, kHidden}},
                                            nn::Init::normal(0.7));
    };
    std::vector<std::unique_ptr<nn::Segment>> segments;
    Param& words = table(0, "table");
    segments.push_back(std::make_unique<Table>(words));
    for (int64_t i = 1; i <= kBlocks; ++i)
      segments.push_back(
          std::make_unique<Block>(root.of_segment(i) / ("block" + std::to_string(i))));
    Param& out = options.tied ? words : table(kBlocks + 1, "out");
    out.used_by(kBlocks + 1);
    segments.push_back(std::make_unique<Head>(out));
    for (Param& param : params) param.trainable = options.train_all || !is_frozen(param, options);
    chunk = std::make_unique<nn::Chunk>(test::chain(std::move(segments),
                                                    {.recompute = {.layers = options.recompute}},
                                                    /*takes=*/false, /*gives=*/false));
  }
  nn::ParamList params;
  std::unique_ptr<nn::Chunk> chunk;
};

/// The ids of `count` samples: the first one and every `stride`-th.
at::Tensor ids_of(int64_t step, int64_t first, int64_t count, int64_t stride) {
  std::vector<at::Tensor> rows;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t sample = first + i * stride;
    rows.push_back(at::arange(kTokens, at::kLong) * (sample + 1) + step * 5 + sample);
  }
  return at::cat(rows).remainder(kVocab);
}

constexpr double kLr = 0.05, kDecay = 0.1, kClip = 0.5;

/// One rank's training with the engine. Samples go round the ranks.
class Worker {
 public:
  Worker(const Options& options, const DdpConfig& ddp, const comm::Group& dp)
      : options_(options), dp_(dp), model_(options),
        store_(model_.params, at::kCPU, ddp,
               comm::ParallelGroups(dp, {}, data_parallel_groups("dp", dp.size(), ddp))) {
    store_.write_values([](Param& param) { param.initialize(1); });
    store_.defer_to_flush(options.deferred && options.all_forwards_first);
    optimizer_ = std::make_unique<optim::Optimizer>(optim::OptimizerConfig{}, store_.shards());
  }

  Trained train() {
    Trained result;
    for (int64_t i = 0; i < options_.steps; ++i) step(i, result);
    store_.read_values(
        [&](const Param& param) { result.weights[param.name()] = param.value().clone(); });
    return result;
  }

 private:
  struct Microbatch {
    explicit Microbatch(const Options& options)
        : pass(options.micro_batch * kTokens, options.deferred) {}
    test::Pass pass;
    nn::Tape tape;
  };

  void step(int64_t number, Trained& result) {
    const int64_t size = options_.micro_batch, count = kSamples / dp_.size() / size;
    double loss = 0;
    std::vector<std::unique_ptr<Microbatch>> under_way;
    store_.begin_step();
    for (int64_t m = 0; m < count; ++m) {
      under_way.push_back(std::make_unique<Microbatch>(options_));
      Microbatch& one = *under_way.back();
      one.pass.batch.fields["input_ids"] =
          ids_of(number, m * size * dp_.size() + dp_.rank(), size, dp_.size());
      model_.chunk->forward({}, one.pass.ctx, store_, &one.tape);
      loss += one.pass.results.at("loss").item<double>();
      if (m == count - 1) store_.forwards_done();
      if (!options_.all_forwards_first) backward(one);
    }
    for (const auto& one : under_way) {
      if (options_.all_forwards_first) backward(*one);
    }
    store_.finish_gradients();
    result.losses.push_back(summed(loss));
    result.norms.push_back(std::sqrt(summed(store_.counted_sum_of_squares().item<double>())));
    optimizer_->step(kLr, kDecay, optim::clip_coefficient(kClip, result.norms.back()));
    store_.publish_values();
  }

  void backward(Microbatch& one) {
    model_.chunk->backward({}, one.pass.ctx, store_, one.tape);
    if (!options_.deferred) return;
    one.pass.wgrad.drain();
    store_.flush();
  }

  double summed(double x) const {
    return comm::all_reduce(at::scalar_tensor(x, at::kDouble), comm::ReduceOp::kSum, dp_)
        .item<double>();
  }

  Options options_;
  comm::Group dp_;
  TestModel model_;
  DataParallel store_;
  std::unique_ptr<optim::Optimizer> optimizer_;
};

/// The same training without the engine: all samples in one batch, everything resident and nothing
/// frozen, but gradients of frozen parameters are thrown away and their values put back.
Trained oracle(Options options) {
  options.train_all = true;
  TestModel model(options);
  nn::ParamList& params = model.params;
  nn::ResidentStore store(params, at::kCPU);
  for (Param& param : params) param.initialize(1);
  optim::Optimizer optimizer({}, store.shards());
  Trained result;
  for (int64_t step = 0; step < options.steps; ++step) {
    store.gradients().zero_();
    test::Pass pass(kSamples * kTokens);
    nn::Tape tape;
    pass.batch.fields["input_ids"] = ids_of(step, 0, kSamples, 1);
    model.chunk->forward({}, pass.ctx, store, &tape);
    result.losses.push_back(pass.results.at("loss").item<double>());
    model.chunk->backward({}, pass.ctx, store, tape);
    std::map<Param*, at::Tensor> kept;
    for (Param& param : params) {
      if (!is_frozen(param, options)) continue;
      EXPECT_GT(param.main_grad().norm().item<double>(), 0);
      at::Tensor(param.main_grad()).zero_();
      kept[&param] = param.value().clone();
    }
    result.norms.push_back(store.gradients().norm().item<double>());
    optimizer.step(kLr, kDecay, optim::clip_coefficient(kClip, result.norms.back()));
    for (const auto& [param, value] : kept) at::Tensor(param->value()).copy_(value);
  }
  for (const Param& param : params) result.weights[param.name()] = param.value().clone();
  return result;
}

void expect_same(const Trained& run, const Trained& expected, double bound) {
  ASSERT_EQ(run.losses.size(), expected.losses.size());
  for (size_t i = 0; i < run.losses.size(); ++i) {
    EXPECT_NEAR(run.losses[i], expected.losses[i], bound * expected.losses[i]) << "step " << i;
    EXPECT_NEAR(run.norms[i], expected.norms[i], bound * expected.norms[i]) << "step " << i;
  }
  ASSERT_EQ(run.weights.size(), expected.weights.size());
  for (const auto& [name, weight] : expected.weights) {
    SCOPED_TRACE(name);
    test::expect_close(run.weights.at(name), weight, {bound, bound});
  }
}

class EveryStage : public testing::TestWithParam<int64_t> {};

TEST_P(EveryStage, TrainsLikeOneRank) {
  for (const auto& [tied, table_frozen] :
       {std::pair{false, false}, {false, true}, {true, false}, {true, true}}) {
    const Trained expected = oracle({.tied = tied, .table_frozen = table_frozen});
    for (const int ranks : {1, 2, 3}) {
      for (const bool overlap : {true, false}) {
        for (const int64_t bucket_size : {tied ? 1 : 200, 100}) {
          for (const bool gpipe : {true, false}) {
            test::run_ranks(ranks, [&](const comm::Group& dp) {
              SCOPED_TRACE(fmt::format("tied {} frozen {} ranks {} overlap {} bucket {} gpipe {}",
                                       tied, table_frozen, ranks, overlap, bucket_size, gpipe));
              const DdpConfig ddp{.zero_stage = GetParam(),
                                  .bucket_size = bucket_size,
                                  .overlap_grad_reduce = overlap,
                                  .overlap_param_gather = overlap};
              const Options options{.tied = tied,
                                    .table_frozen = table_frozen,
                                    .deferred = bucket_size > 1,
                                    .recompute = !gpipe,
                                    .all_forwards_first = gpipe};
              expect_same(Worker(options, ddp, dp).train(), expected, 1e-12);
            });
          }
        }
      }
    }
  }
}

using EveryStageThatSplits = EveryStage;

TEST_P(EveryStageThatSplits, TrainsLikeOneRankInInstances) {
  const Trained expected = oracle({.tied = true});
  test::run_ranks(4, [&](const comm::Group& dp) {
    const DdpConfig ddp{
        .zero_stage = GetParam(), .bucket_size = 100, .num_distributed_optimizer_instances = 2};
    expect_same(Worker({.tied = true, .deferred = true}, ddp, dp).train(), expected, 1e-12);
  });
}

INSTANTIATE_TEST_SUITE_P(Zero, EveryStage, testing::Values(0, 1, 2, 3));
INSTANTIATE_TEST_SUITE_P(Zero, EveryStageThatSplits, testing::Values(1, 2, 3));

TEST(Training, LeavesFrozenParametersAlone) {
  const Trained run = oracle({}), start = Worker({.steps = 0}, {}, {}).train();
  for (const auto& [name, weight] : start.weights) {
    EXPECT_EQ(at::equal(run.weights.at(name), weight),
              name == "block1.bias" || name == "block2.weight" || name.ends_with(".unused"))
        << name;
  }
}

/// With one microbatch a step all policies add the same numbers in the same order.
TEST(Training, InBf16IsBitForBitTheSameUnderEveryPolicy) {
  for (const bool fp32 : {true, false}) {
    std::map<int64_t, Trained> runs;
    std::mutex mutex;
    for (const int64_t stage : {0, 1, 2, 3}) {
      test::run_ranks(3, [&](const comm::Group& dp) {
        const Options options{.dtype = at::kBFloat16, .micro_batch = kSamples / 3, .steps = 10};
        Trained run =
            Worker(options, {.zero_stage = stage, .bucket_size = 80, .grad_reduce_in_fp32 = fp32},
                   dp)
                .train();
        const std::lock_guard lock(mutex);
        if (dp.rank() == 1) runs[stage] = std::move(run);
      });
    }
    for (const int64_t stage : {1, 2, 3}) {
      for (const auto& [name, weight] : runs[0].weights)
        EXPECT_TRUE(test::same_bits(runs[stage].weights.at(name), weight)) << name << stage << fp32;
    }
  }
}

} // namespace
} // namespace pentatron::parallel
