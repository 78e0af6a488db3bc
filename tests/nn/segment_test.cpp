// A chunk of segments is the same function as one large autograd graph, whatever is run again,
// deferred or interleaved.
#include "pentatron/nn/segment.h"

#include "pentatron/nn/ops/ops.h"
#include "pentatron/nn/record.h"
#include "tests/nn/chain.h"
#include "tests/nn/op_fixture.h"
#include "tests/support/ranks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

namespace pentatron::nn {
namespace {

using test::expect_close;
using test::Params;
using test::Pass;
using test::randn;

constexpr int64_t kHidden = 6, kTokens = 8;

/// x + dropout(silu(x W^T + b))
class Block final : public Segment {
 public:
  Block(std::string name, Param& weight, Param& bias, double dropout)
      : name_(std::move(name)), weight_(&weight), bias_(&bias), dropout_(dropout) {}
  std::string name() const override { return name_; }
  bool recomputable() const override { return true; }
  Output forward(const std::vector<at::Tensor>& taken, const ForwardContext& ctx) const override {
    const at::Tensor& x = taken[0];
    ++runs;
    const at::Tensor y =
        activation(linear(x, *weight_, bias_, ctx), kernels::Activation::kSilu, false);
    return {.flows = {x + nn::dropout(y, {.p = dropout_, .site = 1}, ctx)}, .loss = {}};
  }
  mutable int runs = 0;

 private:
  std::string name_;
  Param *weight_, *bias_;
  double dropout_;
};

/// Sums everything: the scalar end of a chunk.
class Sum final : public Segment {
 public:
  std::string name() const override { return "sum"; }
  Output forward(const std::vector<at::Tensor>& taken, const ForwardContext&) const override {
    const at::Tensor sum = taken[0].square().sum();
    return {.flows = {}, .loss = sum};
  }
};

/// Ids to rows.
class Table final : public Segment {
 public:
  explicit Table(Param& table) : table_(&table) {}
  std::string name() const override { return "table"; }
  Output forward(const std::vector<at::Tensor>&, const ForwardContext& ctx) const override {
    return {.flows = {embedding(ctx.batch->field("input_ids"), *table_, nullptr, 0, ctx)},
            .loss = {}};
  }

 private:
  Param* table_;
};

/// Writes down what is asked of it.
class DiaryStore final : public ParamStore {
 public:
  void acquire(int64_t segment, nn::Pass) override { diary += "+" + std::to_string(segment); }
  void release(int64_t segment, nn::Pass) override { diary += "-" + std::to_string(segment); }
  std::string diary;
};

/// Three blocks and a sum; the last block uses the first one's weight again.
struct Model {
  Params params;
  std::vector<Param*> all;
  std::vector<const Block*> blocks;
  DiaryStore store;

  Chunk chunk(ChunkOptions options, double dropout = 0) {
    std::vector<std::unique_ptr<Segment>> segments;
    Param& w0 = add("w0", {kHidden, kHidden});
    Param& w1 = add("w1", {kHidden, kHidden});
    for (int i = 0; i < 3; ++i) {
      auto block = std::make_unique<Block>("block" + std::to_string(i), i == 1 ? w1 : w0,
                                           add("b" + std::to_string(i), {kHidden}), dropout);
      blocks.push_back(block.get());
      segments.push_back(std::move(block));
    }
    segments.push_back(std::make_unique<Sum>());
    return test::chain(std::move(segments), options, /*takes=*/true, /*gives=*/false);
  }

 private:
  Param& add(const std::string& name, at::IntArrayRef shape) {
    Param& param = params.add(name, randn(shape, 100 + all.size()) * 0.5);
    all.push_back(&param);
    return param;
  }
};

struct Outcome {
  at::Tensor loss, dx;
  std::vector<at::Tensor> grads;
};

Outcome run(ChunkOptions options, bool deferred, double dropout = 0) {
  Model model;
  const Chunk chunk = model.chunk(options, dropout);
  Pass pass(kTokens, deferred);
  pass.ctx.training = true;
  Tape tape;
  Outcome out;
  chunk.forward({randn({kTokens, kHidden}, 1)}, pass.ctx, model.store, &tape);
  out.loss = pass.results.at("loss");
  out.dx = chunk.backward({}, pass.ctx, model.store, tape)[0];
  if (deferred) {
    EXPECT_EQ(pass.wgrad.size(), 3u);
    for (const Param* param : model.all) {
      EXPECT_EQ(param->main_grad().abs().max().item<double>(), 0) << param->name();
      EXPECT_EQ(param->outstanding_uses(), param->name() == "w0" ? 2 : 1);
    }
    pass.wgrad.drain();
  }
  EXPECT_EQ(pass.wgrad.size(), 0u);
  for (const Param* param : model.all) {
    EXPECT_EQ(param->outstanding_uses(), 0) << param->name();
    out.grads.push_back(param->main_grad());
  }
  const Recomputation& again = options.recompute;
  for (int64_t i = 0; i < std::ssize(model.blocks); ++i) {
    const Block* const block = model.blocks[static_cast<size_t>(i)];
    EXPECT_EQ(block->runs, 1 + (again.layers && (again.count == 0 || i < again.count)));
  }
  return out;
}

void expect_bits(const Outcome& a, const Outcome& b) {
  EXPECT_TRUE(test::same_bits(a.loss, b.loss));
  EXPECT_TRUE(test::same_bits(a.dx, b.dx));
  ASSERT_EQ(a.grads.size(), b.grads.size());
  for (size_t i = 0; i < a.grads.size(); ++i)
    EXPECT_TRUE(test::same_bits(a.grads[i], b.grads[i])) << i;
}

TEST(Chunk, IsTheFunctionThatItsSegmentsCompose) {
  const Outcome actual = run({}, false);
  std::vector<at::Tensor> inputs = {randn({kTokens, kHidden}, 1)};
  Model model;
  model.chunk({});
  for (const Param* param : model.all) inputs.push_back(param->value());
  // In order of registration: w0, w1, b0, b1, b2.
  const auto expected = test::differentiate(
      [](const auto& in) {
        const auto block = [](const at::Tensor& x, const at::Tensor& w, const at::Tensor& b) {
          return x + at::silu(x.matmul(w.t()) + b);
        };
        return block(block(block(in[0], in[1], in[3]), in[2], in[4]), in[1], in[5]).square().sum();
      },
      inputs, at::ones({}, at::kDouble));
  expect_close(actual.loss, expected.y, {1e-13, 0});
  expect_close(actual.dx, expected.grads[0], {1e-12, 1e-12});
  for (size_t i = 0; i < actual.grads.size(); ++i)
    expect_close(actual.grads[i], expected.grads[i + 1], {1e-12, 1e-12});
}

TEST(Chunk, RecomputationChangesNoBit) {
  for (const double dropout : {0.0, 0.4})
    for (const Recomputation& again : {Recomputation{.layers = true},
                                       {.layers = true, .group = 2},
                                       {.layers = true, .group = 3},
                                       {.layers = true, .group = 100},
                                       {.layers = true, .count = 1},
                                       {.layers = true, .group = 2, .count = 2}})
      for (const bool deferred : {false, true})
        expect_bits(run({.recompute = again}, deferred, dropout), run({}, false, dropout));
}

TEST(Chunk, DeferredWeightGradientsChangeNoBit) {
  expect_bits(run({}, true, 0.4), run({}, false, 0.4));
  expect_bits(run({.recompute = {.layers = true}}, true, 0.4), run({}, false, 0.4));
}

TEST(Chunk, MicrobatchesMayOverlap) {
  const auto grads = [](bool overlapped) {
    Model model;
    const Chunk chunk = model.chunk({});
    int ready = 0;
    model.all[0]->on_ready = [&](Param&) { ++ready; };
    Pass first(kTokens), second(kTokens);
    Tape tape_first, tape_second;
    chunk.forward({randn({kTokens, kHidden}, 1)}, first.ctx, model.store, &tape_first);
    if (!overlapped) chunk.backward({}, first.ctx, model.store, tape_first);
    chunk.forward({randn({kTokens, kHidden}, 2)}, second.ctx, model.store, &tape_second);
    if (overlapped) chunk.backward({}, first.ctx, model.store, tape_first);
    EXPECT_EQ(ready, overlapped ? 0 : 1);
    chunk.backward({}, second.ctx, model.store, tape_second);
    EXPECT_EQ(ready, overlapped ? 1 : 2);
    std::vector<at::Tensor> result;
    for (const Param* param : model.all) result.push_back(param->main_grad());
    return result;
  };
  const auto overlapped = grads(true), sequential = grads(false);
  for (size_t i = 0; i < overlapped.size(); ++i)
    EXPECT_TRUE(test::same_bits(overlapped[i], sequential[i])) << i;
}

TEST(Chunk, AcquiresEveryUnitAroundItsRun) {
  Model model;
  const Chunk chunk = model.chunk({.recompute = {.layers = true}});
  Pass pass(kTokens);
  Tape tape;
  chunk.forward({randn({kTokens, kHidden}, 1)}, pass.ctx, model.store, &tape);
  EXPECT_EQ(model.store.diary, "+0-0+1-1+2-2+3-3");
  model.store.diary.clear();
  chunk.backward({}, pass.ctx, model.store, tape);
  EXPECT_EQ(model.store.diary, "+3-3+2-2+1-1+0-0");
}

TEST(Chunk, KeepsTheInputOfAGroupAndRunsAllOfItAgain) {
  Model model;
  const Chunk chunk = model.chunk({.recompute = {.layers = true, .group = 2}});
  Pass pass(kTokens);
  Tape tape;
  chunk.forward({randn({kTokens, kHidden}, 1)}, pass.ctx, model.store, &tape);
  EXPECT_EQ(model.store.diary, "+0-0+1-1+2-2+3-3");
  std::string kept;
  for (const auto& [name, bytes] : tape.saved().list()) kept += name + " ";
  EXPECT_TRUE(kept.starts_with("input input input ")) << kept; // two groups, and the sum
  model.store.diary.clear();
  chunk.backward({}, pass.ctx, model.store, tape);
  EXPECT_EQ(model.store.diary, "+3-3+2-2+0-0+1-1+0-0");
}

TEST(Chunk, WithoutATapeNothingIsKeptOrCounted) {
  Model model;
  const Chunk chunk = model.chunk({});
  Pass pass(kTokens);
  chunk.forward({randn({kTokens, kHidden}, 1)}, pass.ctx, model.store, nullptr);
  EXPECT_FALSE(pass.results.at("loss").requires_grad());
  for (const Param* param : model.all) EXPECT_EQ(param->outstanding_uses(), 0) << param->name();
}

TEST(Chunk, StartsFromTheGivenGradientAndReturnsThatOfTheInput) {
  Params params;
  Param &w = params.add("w", randn({kHidden, kHidden}, 1)),
        &b = params.add("b", randn({kHidden}, 2));
  std::vector<std::unique_ptr<Segment>> segments;
  segments.push_back(std::make_unique<Block>("block", w, b, 0));
  const Chunk chunk = test::chain(std::move(segments), {}, /*takes=*/true, /*gives=*/true);
  DiaryStore store;
  const at::Tensor x = randn({kTokens, kHidden}, 3), dy = randn({kTokens, kHidden}, 4);
  Pass pass(kTokens);
  Tape tape;
  chunk.forward({x}, pass.ctx, store, &tape);
  const at::Tensor dx = chunk.backward({dy.clone()}, pass.ctx, store, tape)[0];
  const auto expected = test::differentiate(
      [&](const auto& in) { return in[0] + at::silu(in[0].matmul(w.value().t()) + b.value()); },
      {x}, dy);
  expect_close(dx, expected.grads[0], {1e-12, 1e-12});
}

TEST(Chunk, TokenIdsHaveNoGradient) {
  Params params;
  Param& table = params.add("t", randn({5, kHidden}, 1));
  std::vector<std::unique_ptr<Segment>> segments;
  segments.push_back(std::make_unique<Table>(table));
  segments.push_back(std::make_unique<Sum>());
  const Chunk chunk = test::chain(std::move(segments), {}, /*takes=*/false, /*gives=*/false);
  DiaryStore store;
  Pass pass(3);
  pass.batch.fields["input_ids"] = at::tensor({4, 0, 4}, at::kLong);
  Tape tape;
  chunk.forward({}, pass.ctx, store, &tape);
  EXPECT_FALSE(chunk.backward({}, pass.ctx, store, tape)[0].defined());
  expect_close(table.main_grad()[4], 4 * table.value()[4], {1e-13, 0});
  EXPECT_EQ(table.main_grad()[1].abs().max().item<double>(), 0);
}

TEST(Chunk, NamesTheFirstLayerThatIsNotFinite) {
  for (const bool check : {false, true}) {
    for (const bool with_tape : {false, true}) {
      Model model;
      const Chunk chunk = model.chunk({});
      // b1: from block1 on.
      at::Tensor(model.all[3]->value())[2] = std::numeric_limits<double>::infinity();
      Pass pass(kTokens);
      pass.ctx.check_finite = check;
      Tape tape;
      chunk.forward({randn({kTokens, kHidden}, 1)}, pass.ctx, model.store,
                    with_tape ? &tape : nullptr);
      EXPECT_EQ(pass.state.first_nonfinite, check ? "block1" : "");
    }
  }
  Model model;
  const Chunk chunk = model.chunk({});
  Pass pass(kTokens);
  pass.ctx.check_finite = true;
  chunk.forward({randn({kTokens, kHidden}, 1)}, pass.ctx, model.store, nullptr);
  EXPECT_EQ(pass.state.first_nonfinite, "");
}

/// Gives two flows: x and x squared.
class Fork final : public Segment {
 public:
  std::string name() const override { return "fork"; }
  Output forward(const std::vector<at::Tensor>& taken, const ForwardContext&) const override {
    return {.flows = {taken[0] * 1, taken[0].square()}, .loss = {}};
  }
};
/// x + sin(memory)
class Reader final : public Segment {
 public:
  std::string name() const override { return "reader"; }
  bool recomputable() const override { return true; }
  Output forward(const std::vector<at::Tensor>& taken, const ForwardContext&) const override {
    return {.flows = {taken[0] + at::sin(taken[1])}, .loss = {}};
  }
};

/// A flow that several segments take has the sum of their gradients, in one chunk and over two.
TEST(Chunk, AFlowThatIsTakenTwiceHasBothGradients) {
  const at::Tensor x = randn({kTokens, kHidden}, 1);
  const auto expected = test::differentiate(
      [](const auto& in) {
        const at::Tensor memory = in[0].square();
        return (in[0] + 2 * at::sin(memory)).square().sum();
      },
      {x}, at::ones({}, at::kDouble));
  for (const bool recompute : {false, true}) {
    for (const bool cut : {false, true}) {
      DiaryStore store;
      std::vector<ConnectedSegment> first, second;
      first.push_back({std::make_unique<Fork>(), {.takes = {0}, .gives = {0, 1}, .ends = {}}});
      first.push_back({std::make_unique<Reader>(), {.takes = {0, 1}, .gives = {0}, .ends = {}}});
      std::vector<ConnectedSegment>& behind = cut ? second : first;
      behind.push_back({std::make_unique<Reader>(), {.takes = {0, 1}, .gives = {0}, .ends = {1}}});
      behind.push_back({std::make_unique<Sum>(), {.takes = {0}, .gives = {}, .ends = {0}}});
      const Chunk a(std::move(first), 2, {.recompute = {.layers = recompute}}),
          b(std::move(second), 2, {.recompute = {.layers = recompute}});
      Pass pass(kTokens);
      Tape tape_a, tape_b;
      Flows between = a.forward({x}, pass.ctx, store, &tape_a);
      EXPECT_EQ(between[0].defined() && between[1].defined(), cut);
      b.forward(std::move(between), pass.ctx, store, &tape_b);
      expect_close(pass.results.at("loss"), expected.y, {1e-13, 0});
      Flows gradients = b.backward({}, pass.ctx, store, tape_b);
      gradients = a.backward(std::move(gradients), pass.ctx, store, tape_a);
      expect_close(gradients[0], expected.grads[0], {1e-12, 1e-12});
      EXPECT_FALSE(gradients[1].defined());
    }
  }
}

/// Of three blocks and a sum, those before the first block that trains keep nothing, are not run
/// again and have no backward pass. The first block and the last share a weight.
TEST(Chunk, BackwardEndsWhereNothingBeforeTrains) {
  const auto frozen = [](const Param& param) { return param.name() != "b2"; };
  for (const bool recompute : {false, true}) {
    SCOPED_TRACE(recompute);
    Model whole, limited;
    const Chunk everything = whole.chunk({.recompute = {.layers = recompute}}, 0.4);
    Chunk chunk = limited.chunk({.recompute = {.layers = recompute}}, 0.4);
    for (Model* model : {&whole, &limited})
      for (Param* param : model->all) param->trainable = !frozen(*param);
    for (size_t i = 0; i < 4; ++i) chunk.limit_backward(i, /*trains=*/i == 2, {i > 2});
    const at::Tensor x = randn({kTokens, kHidden}, 1);
    Pass first(kTokens), second(kTokens);
    first.ctx.training = second.ctx.training = true;
    Tape tape_first, tape_second;
    everything.forward({x}, first.ctx, whole.store, &tape_first);
    chunk.forward({x}, second.ctx, limited.store, &tape_second);
    EXPECT_TRUE(test::same_bits(second.results.at("loss"), first.results.at("loss")));
    const auto inputs = [](const Tape& tape) {
      const auto uses = tape.saved().list();
      return std::ranges::count(uses, "input", &SavedTensors::Use::name);
    };
    EXPECT_EQ(inputs(tape_first), 4);
    EXPECT_EQ(inputs(tape_second), 2);
    EXPECT_LT(tape_second.saved().bytes(), tape_first.saved().bytes());
    limited.store.diary.clear();
    EXPECT_TRUE(everything.backward({}, first.ctx, whole.store, tape_first)[0].defined());
    EXPECT_FALSE(chunk.backward({}, second.ctx, limited.store, tape_second)[0].defined());
    EXPECT_EQ(limited.store.diary, "+3-3+2-2");
    for (size_t i = 0; i < 3; ++i)
      EXPECT_EQ(limited.blocks[i]->runs, recompute && i == 2 ? 2 : 1) << i;
    for (const Param* param : limited.all) EXPECT_EQ(param->outstanding_uses(), 0);
    EXPECT_TRUE(test::same_bits(limited.all.back()->main_grad(), whole.all.back()->main_grad()));
    EXPECT_GT(limited.all.back()->main_grad().abs().max().item<double>(), 0);
  }
}

TEST(Chunk, OfFrozenSegmentsKeepsNothing) {
  Model model;
  Chunk chunk = model.chunk({});
  for (Param* param : model.all) param->trainable = false;
  for (size_t i = 0; i < 4; ++i) chunk.limit_backward(i, /*trains=*/false, {false});
  Pass pass(kTokens);
  Tape tape;
  chunk.forward({randn({kTokens, kHidden}, 1)}, pass.ctx, model.store, &tape);
  EXPECT_EQ(tape.saved().bytes(), 0);
  EXPECT_TRUE(tape.records().empty());
  EXPECT_FALSE(chunk.backward({}, pass.ctx, model.store, tape)[0].defined());
  EXPECT_EQ(model.store.diary, "+0-0+1-1+2-2+3-3");
}

TEST(Chunk, AMissingGradientIsAnInternalError) {
  DiaryStore store;
  std::vector<ConnectedSegment> segments;
  segments.push_back({std::make_unique<Fork>(), {.takes = {0}, .gives = {0, 1}, .ends = {}}});
  const Chunk chunk(std::move(segments), 2, {});
  Pass pass(kTokens);
  Tape tape;
  const at::Tensor x = randn({kTokens, kHidden}, 1);
  chunk.forward({x}, pass.ctx, store, &tape);
  const std::string message = test::error_of([&] { chunk.backward({x}, pass.ctx, store, tape); });
  EXPECT_NE(message.find("output 1 of fork"), std::string::npos) << message;
}

TEST(NoAutogradGuard, NothingBelowItIsRecorded) {
  const at::Tensor x = randn({3}, 1).requires_grad_(true);
  ASSERT_TRUE(grad_enabled());
  {
    const NoAutograd guard;
    EXPECT_FALSE(grad_enabled());
    EXPECT_FALSE((x * 2).requires_grad());
    {
      const NoAutograd nested;
      EXPECT_FALSE(grad_enabled());
    }
    EXPECT_FALSE(grad_enabled());
    const at::Tensor out = at::zeros({3}, at::kDouble);
    bool called = false;
    record("test", {x}, {out}, {}, [&](auto&&, Saved&) {
      called = true;
      return std::vector<at::Tensor>{};
    });
    EXPECT_FALSE(out.requires_grad());
    EXPECT_FALSE(called);
    EXPECT_NO_THROW(x.detach().add_(1)); // shared storage
  }
  EXPECT_TRUE(grad_enabled());
  EXPECT_TRUE((x * 2).requires_grad());
}

TEST(NoAutogradGuard, IsGoneAfterAnException) {
  EXPECT_ANY_THROW({
    const NoAutograd guard;
    at::ones({2}).matmul(at::ones({3}));
  });
  EXPECT_TRUE(grad_enabled());
  EXPECT_TRUE((randn({2}, 1).requires_grad_(true) * 2).requires_grad());
}

TEST(Record, AnOperatorIsDifferentiatedOnce) {
  Params params;
  Param& w = params.add("w", randn({2, 2}, 1));
  Pass pass(2);
  const at::Tensor y = linear(randn({2, 2}, 2).requires_grad_(true), w, nullptr, pass.ctx);
  y.backward(at::ones({2, 2}, at::kDouble));
  const std::string message = test::error_of([&] { y.backward(at::ones({2, 2}, at::kDouble)); });
  EXPECT_NE(message.find("linear is differentiated twice"), std::string::npos) << message;
}

TEST(Record, AnErrorInBackwardReachesTheCaller) {
  Params params;
  Param& w = params.add("spare.weight", randn({2, 2}, 1));
  Pass pass(2);
  pass.ctx.count_uses = false; // nothing announces the use that backward pays back
  const at::Tensor y = linear(randn({2, 2}, 2), w, nullptr, pass.ctx);
  const std::string message = test::error_of([&] { y.backward(at::ones({2, 2}, at::kDouble)); });
  EXPECT_NE(message.find("spare.weight"), std::string::npos) << message;
}

} // namespace
} // namespace pentatron::nn
