// The bookkeeping of graphs, with a graph that computes when it is recorded and does nothing when
// it is launched: what is announced, paid back and told is the same as without graphs.
#include "pentatron/nn/layer_graphs.h"

#include "pentatron/base/error.h"
#include "pentatron/kernels/common/build.h"
#include "pentatron/nn/host_copies.h"
#include "pentatron/nn/ops/ops.h"
#include "tests/nn/chain.h"
#include "tests/nn/op_fixture.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace pentatron::nn {
namespace {

using test::randn;
using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr int64_t kTokens = 8;

/// "r": recorded, "l": launched.
struct Diary {
  std::string text;
  LayerGraphs::Maker maker() {
    return [this](const StreamGraph*) { return std::make_unique<Graph>(*this); };
  }

  struct Graph final : StreamGraph {
    explicit Graph(Diary& to) : diary(to) {}
    void record(const std::function<void()>& body) override {
      diary.text += 'r';
      body();
    }
    void launch() override { diary.text += 'l'; }
    Diary& diary;
  };
};

TEST(LayerGraphs, PaysBackWhatALaunchedPassHasAnnounced) {
  test::Params params;
  Param& param = params.add("w", randn({3}, 1));
  std::string told;
  Diary diary;
  LayerGraphs graphs(0, diary.maker());
  param.on_ready = [&](Param&) { told += diary.text + ";"; };
  std::vector<at::Tensor> from, gradients; // that the bodies saw
  for (int pass = 0; pass < 5; ++pass) {
    test::Pass step(kTokens);
    Tape tape;
    diary.text.clear();
    param.clear_main_grad();
    const at::Tensor out = graphs.forward(at::full({2}, pass, at::kDouble), step.ctx, tape,
                                          [&](const at::Tensor& in, Tape&) {
                                            from.push_back(in);
                                            step.ctx.use(&param);
                                            step.ctx.use(&param);
                                            return in * 2;
                                          });
    EXPECT_EQ(param.outstanding_uses(), 2) << pass;
    const at::Tensor dx = graphs.backward(
        at::full({2}, 10 + pass, at::kDouble), tape, [&](const at::Tensor& gradient, Tape&) {
          gradients.push_back(gradient);
          param.accumulate(at::ones({3}, at::kDouble));
          param.accumulate(at::ones({3}, at::kDouble));
          EXPECT_EQ(told.find('r'), std::string::npos) << "told while backward was recorded";
          return gradient * 3;
        });
    EXPECT_EQ(param.outstanding_uses(), 0) << pass;
    EXPECT_EQ(diary.text, pass < 2 ? "" : pass == 2 ? "rlrl" : "ll");
    EXPECT_EQ(out.numel() + dx.numel(), 4);
    // The sum is defined although the first launch would have written it.
    EXPECT_EQ(param.main_grad()[0].item<double>(), pass < 3 ? 2 : 0);
  }
  // Once a pass, after the launch of its gradients.
  EXPECT_EQ(told, ";;rlrl;ll;ll;");
  // The bodies ran without graphs and to be recorded; then their inputs lie in the same places.
  ASSERT_EQ(from.size(), 3u);
  EXPECT_EQ(from.back()[0].item<double>(), 4);
  EXPECT_EQ(gradients.back()[0].item<double>(), 14);
}

TEST(LayerGraphs, RefusesDocumentsOfOtherLengths) {
  Diary diary;
  LayerGraphs graphs(0, diary.maker());
  const auto pass = [&](SequenceLayout layout) {
    test::Pass step(std::move(layout));
    Tape tape;
    const auto same = [](const at::Tensor& x, Tape&) { return x; };
    graphs.forward(at::zeros({2}), step.ctx, tape, same);
    graphs.backward(at::zeros({2}), tape, same);
  };
  const auto dense = [](uint64_t id) {
    return SequenceLayout::dense(2, 4, {id, id + 1}, at::kCPU);
  };
  for (uint64_t id = 0; id < 4; ++id) pass(dense(id)); // other samples of the same lengths
  EXPECT_THAT(
      [&] {
        pass(SequenceLayout::packed(2, 4, {0, 1}, {0, 3, 4, 8}, true, at::kCPU));
      },
      ThrowsMessage<ConfigError>(HasSubstr("try: train.cuda_graphs=false")));
  EXPECT_THAT([&] { pass(SequenceLayout::dense(1, 8, {0}, at::kCPU)); },
              ThrowsMessage<ConfigError>(HasSubstr("those of this data differ")));
  SequenceLayout padded = dense(0), placed = dense(0);
  padded.real = {{0, 4}, {0, 3}};
  placed.positions_given = true;
  EXPECT_THAT([&] { pass(padded); }, ThrowsMessage<ConfigError>(HasSubstr("have padding")));
  EXPECT_THAT([&] { pass(placed); }, ThrowsMessage<ConfigError>(HasSubstr("gives positions")));
}

/// What neither can do: a second microbatch under way, gradients of weights for later.
TEST(LayerGraphs, HaveOneMicrobatchUnderWay) {
  Diary diary;
  LayerGraphs graphs(0, diary.maker());
  const auto same = [](const at::Tensor& x, Tape&) { return x; };
  Tape tape, other;
  const auto forward = [&](Tape& own, bool deferred) {
    test::Pass step(kTokens, deferred);
    graphs.forward(at::zeros({2}), step.ctx, own, same);
  };
  for (int i = 0; i < 3; ++i) {
    forward(tape, false);
    if (i < 2) graphs.backward(at::zeros({2}), tape, same);
  }
  EXPECT_THROW(forward(other, false), Error);
  EXPECT_THROW(graphs.backward(at::zeros({2}), other, same), Error);
  graphs.backward(at::zeros({2}), tape, same);
  EXPECT_THROW(forward(tape, true), Error);
}

TEST(LayerGraphs, RecordAnewAfterTheyWereForgotten) {
  Diary diary;
  LayerGraphs graphs(0, diary.maker());
  const auto pass = [&] {
    test::Pass step(kTokens);
    Tape tape;
    const auto same = [](const at::Tensor& x, Tape&) { return x; };
    graphs.forward(at::zeros({2}), step.ctx, tape, same);
    graphs.backward(at::zeros({2}), tape, same);
  };
  for (int i = 0; i < 4; ++i) pass();
  EXPECT_EQ(diary.text, "rlrlll");
  graphs.forget();
  for (int i = 0; i < 3; ++i) pass();
  EXPECT_EQ(diary.text, "rlrlllrlrl");
}

TEST(LayerGraphs, RefusesNumbersFromTheHostAndKeepsTensorsOfOthers) {
  Diary diary;
  LayerGraphs graphs(0, diary.maker());
  at::Tensor cached = randn({4}, 2);
  const auto pass = [&](const LayerGraphs::Pass& body) {
    test::Pass step(kTokens);
    Tape tape;
    graphs.forward(at::zeros({2}), step.ctx, tape, body);
    graphs.backward(at::zeros({2}), tape, [](const at::Tensor& x, Tape&) { return x; });
  };
  const auto reads = [](const at::Tensor& x, Tape&) { return host_values(x); };
  for (int i = 0; i < 2; ++i) pass(reads);
  EXPECT_FALSE(records_graph());
  EXPECT_EQ(cached.use_count(), 1u);
  pass([&](const at::Tensor& x, Tape&) {
    EXPECT_TRUE(records_graph());
    keep_for_graph(cached);
    EXPECT_THROW(host_values(x), ConfigError);
    return x;
  });
  EXPECT_FALSE(records_graph());
  EXPECT_EQ(cached.use_count(), 2u);
  keep_for_graph(cached); // nothing without a recording
  EXPECT_EQ(cached.use_count(), 2u);
}

/// x + w
class Shift final : public Segment {
 public:
  Shift(Param& weight, bool layer) : weight_(&weight), layer_(layer) {}
  std::string name() const override { return "shift"; }
  bool recomputable() const override { return layer_; }
  Output forward(const std::vector<at::Tensor>& taken, const ForwardContext& ctx) const override {
    return {.flows = {add_bias(taken[0], *weight_, ctx)}, .loss = {}};
  }

 private:
  Param* weight_;
  bool layer_;
};

/// Without CUDA the first two passes are those of a chunk without graphs, and the next one is
/// refused; segments that are no layers never go into a graph.
TEST(LayerGraphs, OfAChunk) {
  const auto chunk = [](test::Params& params, std::vector<Param*>& all, bool graphs) {
    std::vector<std::unique_ptr<Segment>> segments;
    for (const bool layer : {false, true, true, false}) {
      all.push_back(&params.add("w" + std::to_string(all.size()), randn({3}, 5 + all.size())));
      segments.push_back(std::make_unique<Shift>(*all.back(), layer));
    }
    return test::chain(std::move(segments), {.graphs = graphs}, true, true);
  };
  test::Params params[2];
  std::vector<Param*> all[2];
  const Chunk plain = chunk(params[0], all[0], false), graphs = chunk(params[1], all[1], true);
  struct Store final : ParamStore {
    void acquire(int64_t segment, nn::Pass) override { diary += "+" + std::to_string(segment); }
    void release(int64_t segment, nn::Pass) override { diary += "-" + std::to_string(segment); }
    std::string diary;
  } store[2];
  const auto run = [&](const Chunk& which, ParamStore& at, uint64_t seed) {
    test::Pass step(kTokens);
    Tape tape;
    const at::Tensor y = which.forward({randn({kTokens, 3}, seed)}, step.ctx, at, &tape)[0].clone();
    return std::pair(y, which.backward({y}, step.ctx, at, tape)[0]);
  };
  for (uint64_t seed = 1; seed < 3; ++seed) {
    const auto expected = run(plain, store[0], seed), given = run(graphs, store[1], seed);
    EXPECT_TRUE(at::equal(given.first, expected.first));
    EXPECT_TRUE(at::equal(given.second, expected.second));
    for (size_t i = 0; i < 4; ++i)
      EXPECT_TRUE(at::equal(all[1][i]->main_grad(), all[0][i]->main_grad())) << i;
  }
  const std::string once = "+0-0+1+2-1-2+3-3+3-3+2+1-2-1+0-0";
  EXPECT_EQ(store[1].diary, once + once);
  if (!kernels::built_with_cuda()) {
    EXPECT_THAT([&] { run(graphs, store[1], 3); },
                ThrowsMessage<Error>(HasSubstr("no CUDA graphs")));
  }
}

} // namespace
} // namespace pentatron::nn
