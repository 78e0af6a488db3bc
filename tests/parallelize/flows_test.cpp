// A model of four flows and two streams gives the same losses and gradients under every schedule as
// on one rank.
#include "pentatron/comm/collectives.h"
#include "pentatron/models/model_spec.h"
#include "pentatron/nn/module.h"
#include "pentatron/nn/ops/ops.h"
#include "pentatron/parallel/pipeline/runtime.h"
#include "pentatron/parallel/pipeline/schedule/lower.h"
#include "tests/nn/op_fixture.h"
#include "tests/support/ranks.h"

#include <gtest/gtest.h>

#include <functional>
#include <regex>
#include <string>

namespace pentatron::models {
namespace {

constexpr int64_t kHidden = 5, kSamples = 2, kFirst = 3, kSecond = 4; // tokens of a sample
constexpr int kMicrobatches = 8;

enum Flow { kA, kB, kMemory, kTags };
enum class Part { kSource, kLayer, kBridge, kReader, kTagReader, kLoss };

/// What an encoder and a decoder would connect, and numbers of samples that have no gradient.
class ToySegment final : public nn::Segment {
 public:
  ToySegment(Part part, nn::Param& weight) : part_(part), weight_(&weight) {}
  std::string name() const override { return "toy"; }
  bool recomputable() const override { return part_ == Part::kReader || part_ == Part::kLayer; }
  Output forward(const std::vector<at::Tensor>& taken,
                 const nn::ForwardContext& ctx) const override {
    const auto product = [&](const at::Tensor& x) { return nn::linear(x, *weight_, nullptr, ctx); };
    switch (part_) {
    case Part::kSource:
      return {.flows = {product(ctx.batch->field("first")), ctx.batch->field("tags")}, .loss = {}};
    case Part::kLayer:
      return {.flows = {taken[0] + at::tanh(product(taken[0]))}, .loss = {}};
    case Part::kBridge:
      EXPECT_EQ(ctx.layout->sequence, kSecond);
      return {.flows = {product(taken[0]), ctx.batch->field("second") + taken[0].mean(0, true)},
              .loss = {}};
    case Part::kReader:
      return {.flows = {taken[0] + at::tanh(product(taken[0])) * at::sin(taken[1]).sum(0, true)},
              .loss = {}};
    case Part::kTagReader:
      return {.flows = {product(taken[0]) * (1 + taken[1].sum())}, .loss = {}};
    case Part::kLoss:
      break;
    }
    const at::Tensor loss = product(taken[0]).square().sum();
    ctx.add_loss("toy", loss.detach());
    return {.flows = {}, .loss = loss * ctx.loss_scale("toy")};
  }

 private:
  Part part_;
  nn::Param* weight_;
};

const std::vector<Part>& parts() {
  static const std::vector<Part> list = {
      Part::kSource, Part::kLayer,  Part::kLayer,     Part::kBridge, Part::kReader,
      Part::kReader, Part::kReader, Part::kTagReader, Part::kReader, Part::kLoss};
  return list;
}

ModelSpec toy_spec() {
  ModelSpec spec;
  spec.streams = {"first", "second"};
  spec.flows = {{.name = "a", .stream = 0, .width = kHidden},
                {.name = "b", .stream = 1, .width = kHidden},
                {.name = "memory", .stream = 0, .width = kHidden},
                {.name = "tags",
                 .stream = 0,
                 .rows = nn::FlowRows::kSamples,
                 .width = 1,
                 .differentiable = false}};
  const auto add = [&](int stream, std::vector<int> takes, std::vector<int> gives) {
    spec.segments.push_back(
        {.name = "toy", .stream = stream, .takes = std::move(takes), .gives = std::move(gives)});
  };
  for (const Part part : parts()) {
    if (part == Part::kSource) add(0, {}, {kA, kTags});
    if (part == Part::kLayer) add(0, {kA}, {kA});
    if (part == Part::kBridge) add(1, {kA}, {kMemory, kB});
    if (part == Part::kReader) add(1, {kB, kMemory}, {kB});
    if (part == Part::kTagReader) add(1, {kB, kTags}, {kB});
    if (part == Part::kLoss) add(1, {kB}, {});
  }
  return spec;
}

/// All parameters with storage, and the chunks of these ranges of segments; the first `frozen`
/// segments do not train. `limited`: backward goes no further than it has to.
struct Toy {
  Toy(const std::vector<SegmentRange>& ranges, bool recompute, size_t frozen = 0,
      bool limited = true) {
    const nn::Scope root(params, at::kDouble, {});
    std::vector<nn::Param*> weights;
    for (size_t i = 0; i < parts().size(); ++i) {
      weights.push_back(&root.of_segment(static_cast<int64_t>(i))
                             .param("w" + std::to_string(i),
                                    {.name = {}, .shape = {kHidden, kHidden}},
                                    nn::Init::normal(0.4)));
      weights.back()->trainable = i >= frozen;
    }
    const auto flows = toy_spec().trained_flows(trains(frozen));
    store.emplace(params, at::kCPU);
    for (nn::Param& param : params) param.initialize(3);
    for (const SegmentRange& range : ranges) {
      std::vector<nn::ConnectedSegment> segments;
      for (int64_t i = range.begin; i < range.end; ++i) {
        const auto at = static_cast<size_t>(i);
        segments.push_back(
            {std::make_unique<ToySegment>(parts()[at], *weights[at]), toy_spec().ports(i)});
      }
      chunks.emplace_back(
          std::move(segments), toy_spec().flows.size(),
          nn::ChunkOptions{.first_segment = range.begin, .recompute = {.layers = recompute}});
      for (int64_t i = range.begin; limited && i < range.end; ++i)
        chunks.back().limit_backward(static_cast<size_t>(i - range.begin),
                                     static_cast<size_t>(i) >= frozen,
                                     flows[static_cast<size_t>(i)]);
    }
  }
  static std::vector<bool> trains(size_t frozen) {
    std::vector<bool> trains(parts().size(), true);
    std::fill_n(trains.begin(), frozen, false);
    return trains;
  }
  nn::ParamList params;
  std::optional<nn::ResidentStore> store;
  std::vector<nn::Chunk> chunks;
};

nn::Microbatch microbatch(int number) {
  const auto seed = static_cast<uint64_t>(10 * number);
  return {.fields = {{"first", test::randn({kSamples * kFirst, kHidden}, seed)},
                     {"second", test::randn({kSamples * kSecond, kHidden}, seed + 1)},
                     {"tags", at::arange(kSamples, at::kLong).view({kSamples, 1}) + number}},
          .layouts = {nn::SequenceLayout::dense(kSamples, kFirst, {0, 1}, at::kCPU),
                      nn::SequenceLayout::dense(kSamples, kSecond, {0, 1}, at::kCPU)}};
}

struct Outcome {
  double loss = 0;
  at::Tensor gradients;
};

/// The whole model in one chunk, one microbatch after another, without the runtime.
Outcome oracle(size_t frozen) {
  Toy toy({{0, static_cast<int64_t>(parts().size())}}, false, frozen, /*limited=*/false);
  nn::StepState state;
  for (int m = 0; m < kMicrobatches; ++m) {
    const nn::Microbatch batch = microbatch(m);
    nn::WgradQueue wgrad;
    nn::ForwardContext ctx;
    ctx.batch = &batch;
    ctx.wgrad = &wgrad;
    ctx.state = &state;
    ctx.loss_scales["toy"] = 0.1;
    nn::Tape tape;
    toy.chunks[0].forward({}, ctx, *toy.store, &tape);
    toy.chunks[0].backward({}, ctx, *toy.store, tape);
  }
  return {state.loss_sum("toy"), toy.store->gradients().clone()};
}

class Flows : public testing::TestWithParam<std::string> {};

/// The channels of a schedule on all ranks of the world.
pipeline::Channels channels_of(const pipeline::Schedule& schedule, const comm::Group& world) {
  std::vector<comm::NeededGroup> needed =
      pipeline::channel_groups(schedule.rank_of_stage, /*training=*/true);
  needed.insert(needed.begin(), comm::NeededGroup::of_axes("pp"));
  const comm::ParallelGroups groups(world, {.pp = world.size()}, needed);
  return {groups, schedule.rank_of_stage, /*training=*/true};
}

/// How the ranks are run and what carries their messages.
struct Ways {
  std::function<void(int, const std::function<void(comm::Group)>&)> run_ranks = test::run_ranks;
  bool channels = false;
};

void expect_same_under(const std::string& name, size_t frozen, const Ways& ways = {}) {
  const Outcome expected = oracle(frozen);
  for (const int ranks : {2, 3}) {
    for (const bool recompute : {false, true}) {
      ways.run_ranks(ranks, [&](const comm::Group& world) {
        const pipeline::Schedule schedule =
            pipeline::lower(pipeline::make_schedule(name, ranks, 0, kMicrobatches));
        const auto total = static_cast<int64_t>(parts().size());
        pipeline::Boundaries boundaries{.flows = toy_spec().flows,
                                        .before_stage = {},
                                        .gradients_before_stage = {},
                                        .dtype = at::kDouble,
                                        .device = at::kCPU};
        const auto trained = toy_spec().trained_flows(Toy::trains(frozen));
        std::vector<SegmentRange> own;
        for (int s = 0; s < schedule.num_stages; ++s) {
          const SegmentRange range{total * s / schedule.num_stages,
                                   total * (s + 1) / schedule.num_stages};
          boundaries.before_stage.push_back(toy_spec().alive_before(range.begin));
          boundaries.gradients_before_stage.push_back(boundaries.before_stage.back());
          std::erase_if(boundaries.gradients_before_stage.back(), [&](int flow) {
            return !trained[static_cast<size_t>(range.begin)][static_cast<size_t>(flow)];
          });
          if (schedule.rank_of_stage[static_cast<size_t>(s)] == world.rank()) own.push_back(range);
        }
        Toy toy(own, recompute, frozen);
        std::vector<const nn::Chunk*> chunks;
        for (const nn::Chunk& chunk : toy.chunks) chunks.push_back(&chunk);
        std::vector<nn::Microbatch> batches;
        for (int m = 0; m < kMicrobatches; ++m) batches.push_back(microbatch(m));
        nn::StepState state;
        const pipeline::Channels channels = ways.channels ? channels_of(schedule, world) : world;
        pipeline::Runtime runtime(chunks, *toy.store, channels, boundaries);
        runtime.run(schedule, batches, state, {.loss_scales = {{"toy", 0.1}}, .training = true});
        const at::Tensor loss = at::scalar_tensor(state.loss_sum("toy"), at::kDouble);
        test::expect_close(comm::all_reduce(loss, comm::ReduceOp::kSum, world),
                           at::scalar_tensor(expected.loss, at::kDouble), {1e-12, 0});
        test::expect_close(comm::all_reduce(toy.store->gradients(), comm::ReduceOp::kSum, world),
                           expected.gradients, {1e-11, 1e-11});
      });
    }
  }
}

TEST_P(Flows, AreTheSameUnderEverySchedule) {
  expect_same_under(GetParam(), /*frozen=*/0);
}

/// Up to a layer of the first kind, the giver of two flows, and all but the loss.
TEST_P(Flows, ComeBackOnlyAsFarAsSomethingTrains) {
  for (const size_t frozen : {2, 4, 9}) {
    SCOPED_TRACE(frozen);
    expect_same_under(GetParam(), frozen);
  }
}

/// As on GPUs: sends wait, operations of a group run in order.
void run_in_stream_order(int ranks, const std::function<void(comm::Group)>& body) {
  comm::run_ranks(ranks,
                  {.threads_per_rank = 1, .timeout_s = 5, .heartbeat_s = 0.2, .stream_order = true},
                  body);
}

TEST_P(Flows, AreTheSameWhereSendsWait) {
  expect_same_under(GetParam(), /*frozen=*/0, {run_in_stream_order, /*channels=*/true});
}

TEST(FlowsInOneStream, HangAndAreReportedByTheWatch) {
  const std::string message = test::error_of([] {
    expect_same_under(
        "1f1b", /*frozen=*/0,
        {[](int ranks, const std::function<void(comm::Group)>& body) {
           comm::run_ranks(
               ranks,
               {.threads_per_rank = 1, .timeout_s = 0.5, .heartbeat_s = 0.1, .stream_order = true},
               body);
         },
         /*channels=*/false});
  });
  // Each rank waits in a send to the other; the watch, which looks every 0.1 s, tells one of them.
  static const std::regex stuck(
      "(send #1 from rank 1 to rank 0|send #4 from rank 0 to rank 1) in group world of float64 "
      "\\[8, 5\\] is not complete after 0\\.");
  EXPECT_TRUE(std::regex_search(message, stuck)) << message;
}

INSTANTIATE_TEST_SUITE_P(Schedules, Flows, testing::ValuesIn(pipeline::schedule_names()),
                         [](const auto& info) {
                           std::string name;
                           for (const char c : info.param) name += std::isalnum(c) ? c : '_';
                           return name;
                         });

TEST(FlowsOfASpec, AreTrainedBehindTheFirstSegmentThatTrains) {
  const auto trained = [](std::vector<size_t> segments, size_t before) {
    std::vector<bool> trains(parts().size(), false);
    for (const size_t i : segments) trains[i] = true;
    std::vector<int> flows;
    for (int flow = 0; flow < 4; ++flow)
      if (toy_spec().trained_flows(trains)[before][static_cast<size_t>(flow)])
        flows.push_back(flow);
    return flows;
  };
  EXPECT_EQ(trained({}, 10), (std::vector<int>{}));
  EXPECT_EQ(trained({0}, 1), (std::vector<int>{kA})) << "tags are not differentiable";
  EXPECT_EQ(trained({0}, 10), (std::vector<int>{kA, kB, kMemory}));
  EXPECT_EQ(trained({2}, 2), (std::vector<int>{}));
  EXPECT_EQ(trained({5}, 5), (std::vector<int>{}));
  EXPECT_EQ(trained({5}, 9), (std::vector<int>{kB})) << "the memory is given before";
}

TEST(FlowsOfASpec, AreAliveFromGiverToLastTaker) {
  const ModelSpec spec = toy_spec();
  const auto alive = [&](int64_t segment) { return spec.alive_before(segment); };
  EXPECT_EQ(alive(0), (std::vector<int>{}));
  EXPECT_EQ(alive(1), (std::vector<int>{kA, kTags}));
  EXPECT_EQ(alive(4), (std::vector<int>{kB, kMemory, kTags}));
  EXPECT_EQ(alive(8), (std::vector<int>{kB, kMemory}));
  EXPECT_EQ(alive(9), (std::vector<int>{kB}));
  EXPECT_EQ(spec.ports(8).ends, (std::vector<int>{kMemory}));
  EXPECT_EQ(spec.ports(3).ends, (std::vector<int>{kA}));
}

} // namespace
} // namespace pentatron::models
