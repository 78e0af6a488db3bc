// Sequence parallel and products in chunks against the product of all tokens on one rank.
#include "pentatron/base/error.h"
#include "pentatron/comm/collectives.h"
#include "pentatron/nn/param_store.h"
#include "pentatron/parallel/tensor/linear.h"
#include "pentatron/parallel/tensor/vocab.h"
#include "tests/nn/op_fixture.h"
#include "tests/support/ranks.h"

#include <gtest/gtest.h>

namespace pentatron::parallel {
namespace {

using test::expect_close;
using test::randn;
using test::run_ranks;
using test::shard;

/// Divides over 2, 3 and 4 ranks, in parts of several chunks that are not all of one size.
constexpr int64_t kTokens = 12 * 25;
constexpr test::Tolerance kExact{1e-11, 1e-12};

struct Case {
  int ranks;
  bool sequence, overlap, deferred;
};

class SequenceParallel : public testing::TestWithParam<Case> {
 protected:
  TensorParallel axis(const comm::Group& tp) const {
    return {tp, GetParam().sequence, GetParam().overlap};
  }
  /// What a rank holds of a tensor of all tokens, outside split layers.
  at::Tensor outer(const at::Tensor& all, const comm::Group& tp) const {
    return GetParam().sequence ? shard(all, 0, tp) : all;
  }
  static nn::Scope scope(nn::ParamList& params, const comm::Group& tp) {
    return {params, at::kDouble, {{"tp", {tp.rank(), tp.size()}}}};
  }
};

TEST_P(SequenceParallel, TwoSplitLayersAreTheUnsplitOnes) {
  const at::Tensor x = randn({kTokens, 5}, 1), w1 = randn({12, 5}, 2), b1 = randn({12}, 3),
                   w2 = randn({5, 12}, 4), b2 = randn({5}, 5), dy = randn({kTokens, 5}, 6);
  const auto expected = test::differentiate(
      [](const auto& in) {
        return (in[0].matmul(in[1].t()) + in[2]).relu().matmul(in[3].t()) + in[4];
      },
      {x, w1, b1, w2, b2}, dy);
  run_ranks(GetParam().ranks, [&](const comm::Group& tp) {
    nn::ParamList params;
    const ColumnParallelLinear up(scope(params, tp) / "up",
                                  {.in = 5, .parts = {{"up", 12, 1}}, .bias = true}, axis(tp));
    const RowParallelLinear down(scope(params, tp) / "down", {.in = 12, .out = 5, .bias = true},
                                 axis(tp));
    const nn::ResidentStore store(params, at::kCPU);
    nn::load_global(params.find("up.weight"), w1);
    nn::load_global(params.find("up.bias"), b1);
    nn::load_global(params.find("down.weight"), w2);
    nn::load_global(params.find("down.bias"), b2);
    test::Pass pass(kTokens);
    nn::WgradQueue queue(GetParam().deferred);
    pass.ctx.wgrad = &queue;
    const auto r = test::differentiate(
        [&](const auto& in) { return down.forward(up.forward(in[0], pass.ctx).relu(), pass.ctx); },
        {outer(x, tp)}, outer(dy, tp));
    EXPECT_EQ(queue.size(), GetParam().deferred ? 2u : 0u);
    queue.drain();
    expect_close(r.y, outer(expected.y, tp), kExact);
    expect_close(r.grads[0], outer(expected.grads[0], tp), kExact);
    expect_close(params.find("up.weight").main_grad(), shard(expected.grads[1], 0, tp), kExact);
    expect_close(params.find("up.bias").main_grad(), shard(expected.grads[2], 0, tp), kExact);
    expect_close(params.find("down.weight").main_grad(), shard(expected.grads[3], 1, tp), kExact);
    // Every rank has the bias gradient of its own tokens.
    const nn::Param& bias = params.find("down.bias");
    const bool partial = bias.spec().placement("tp").kind == nn::Placement::Kind::kPartial;
    EXPECT_EQ(partial, GetParam().sequence && tp.size() > 1);
    const at::Tensor db =
        partial ? comm::all_reduce(bias.main_grad(), comm::ReduceOp::kSum, tp) : bias.main_grad();
    expect_close(db, expected.grads[4], kExact);
    for (const nn::Param& param : params) EXPECT_EQ(param.outstanding_uses(), 0) << param.name();
  });
}

TEST_P(SequenceParallel, EmbeddingAndLossAreTheWholeOnes) {
  constexpr int64_t kVocab = 131, kHidden = 6;
  const at::Tensor table = randn({kVocab, kHidden}, 1), places = randn({kTokens, kHidden}, 2);
  std::vector<int64_t> numbers;
  for (int64_t t = 0; t < kTokens; ++t) numbers.push_back(t % 7 == 3 ? -100 : (t * 37) % kVocab);
  const at::Tensor labels = at::tensor(numbers, at::kLong), ids = labels.clamp_min(0);
  const auto expected = test::differentiate(
      [&](const auto& in) {
        const at::Tensor h = in[0].index_select(0, ids) + in[1];
        return at::cross_entropy_loss(h.matmul(in[0].t()), labels, {}, at::Reduction::Sum, -100) *
               0.01;
      },
      {table, places}, at::ones({}, at::kDouble));
  run_ranks(GetParam().ranks, [&](const comm::Group& tp) {
    nn::ShardSpec spec = vocab_spec(kVocab, kHidden);
    spec.name = "table";
    test::Params params;
    nn::Param& words = params.add(spec, {{"tp", {tp.rank(), tp.size()}}}, table);
    nn::Param& positions = params.add("positions", places);
    test::Pass pass(kTokens);
    if (GetParam().sequence) pass.layout.cut_outer(tp.rank(), tp.size());
    pass.ctx.loss_scales["lm loss"] = 0.01;
    const at::Tensor h = VocabParallelEmbedding(words, &positions, axis(tp)).forward(ids, pass.ctx);
    EXPECT_EQ(h.size(0), pass.layout.outer_tokens());
    const at::Tensor loss =
        VocabHead(words, nullptr, axis(tp)).loss(h, labels, "lm loss", pass.ctx);
    loss.backward();
    expect_close(loss, expected.y, kExact);
    at::Tensor dt = at::zeros_like(table);
    nn::store_global(words, words.main_grad(), dt);
    expect_close(comm::all_reduce(dt, comm::ReduceOp::kSum, tp), expected.grads[0], kExact);
    const at::Tensor dp = GetParam().sequence
                              ? comm::all_reduce(positions.main_grad(), comm::ReduceOp::kSum, tp)
                              : positions.main_grad();
    expect_close(dp, expected.grads[1], kExact);
  });
}

INSTANTIATE_TEST_SUITE_P(Ways, SequenceParallel,
                         testing::Values(Case{2, true, false, false}, Case{2, true, true, false},
                                         Case{2, false, true, false}, Case{2, true, true, true},
                                         Case{3, true, false, true}, Case{3, true, true, false},
                                         Case{3, false, true, true}, Case{4, true, true, false},
                                         Case{1, true, true, false}),
                         [](const auto& info) {
                           const Case& c = info.param;
                           return std::to_string(c.ranks) + "_ranks" +
                                  (c.sequence ? "_sequence" : "") + (c.overlap ? "_chunks" : "") +
                                  (c.deferred ? "_deferred" : "");
                         });

TEST(SequenceParallelErrors, TokensThatDoNotDivideAreNamed) {
  nn::SequenceLayout layout = nn::SequenceLayout::dense(1, 7, {0}, at::kCPU);
  EXPECT_NE(test::error_of([&] {
              layout.cut_outer(0, 2);
            }).find("7 tokens of 1 samples cannot be divided evenly among 2"),
            std::string::npos);
}

} // namespace
} // namespace pentatron::parallel
