// The embedding and the fused loss, split over the vocabulary, against LibTorch's operators on the
// whole table.
#include "pentatron/parallel/tensor/linear_adapter.h"
#include "pentatron/parallel/tensor/vocab.h"

#include "pentatron/comm/rank_threads.h"
#include "pentatron/nn/memory/counting_allocator.h"
#include "tests/nn/op_fixture.h"
#include "tests/support/ranks.h"

#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <mutex>

namespace pentatron::parallel {
namespace {

using test::expect_close;
using test::randn;
using test::run_ranks;

constexpr int64_t kHidden = 6, kVocabTokens = 9, kNoTarget = -100;
constexpr test::Tolerance kExactVocab{1e-11, 1e-13};

nn::Coordinates at_rank(const comm::Group& tp) {
  return {{"tp", {tp.rank(), tp.size()}}};
}

/// Ids that cover the ends of the vocabulary; `ignored` of them are no target.
at::Tensor ids_of(int64_t vocab, int64_t tokens, bool with_ignored) {
  std::vector<int64_t> ids;
  for (int64_t t = 0; t < tokens; ++t) ids.push_back(t == 0 ? vocab - 1 : (t * 37) % vocab);
  if (with_ignored) ids[1] = ids[static_cast<size_t>(tokens - 1)] = kNoTarget;
  return at::tensor(ids, at::kLong);
}

struct LossRun {
  at::Tensor loss, dh, dw; ///< dw global
  double sum = 0;
};

LossRun fused_loss(int ranks, const at::Tensor& h, const at::Tensor& w, const at::Tensor& labels,
                   double scale, double padding = 0) {
  LossRun run;
  run.dw = at::zeros_like(w);
  std::mutex mutex;
  run_ranks(ranks, [&](const comm::Group& tp) {
    nn::ShardSpec spec = vocab_spec(w.size(0), w.size(1));
    spec.name = "output";
    test::Params params;
    nn::Param& weight = params.add(spec, at_rank(tp), w);
    const VocabShare share = vocab_share(weight);
    EXPECT_EQ(share.padded % 64, 0);
    weight.value().narrow(0, share.real, share.padded - share.real).fill_(padding);
    test::Pass pass(h.size(0));
    pass.ctx.loss_scales["lm loss"] = scale;
    const VocabHead loss(weight, nullptr, tp);
    const auto r = test::differentiate(
        [&](const auto& in) { return loss.loss(in[0], labels, "lm loss", pass.ctx); }, {h},
        at::ones({}, at::kDouble));
    EXPECT_EQ(weight.outstanding_uses(), 0);
    EXPECT_EQ(weight.main_grad()
                  .narrow(0, share.real, share.padded - share.real)
                  .ne(0)
                  .any()
                  .item<bool>(),
              false)
        << "padding rows have no gradient";
    expect_close(loss.logits(h, {}, pass.ctx), h.matmul(w.t()), kExactVocab);
    const at::Tensor rows = at::tensor({2, 0}, at::kLong);
    expect_close(loss.logits(h, rows, pass.ctx), h.index_select(0, rows).matmul(w.t()),
                 kExactVocab);
    const std::lock_guard lock(mutex);
    nn::store_global(weight, weight.main_grad(), run.dw);
    if (run.loss.defined()) { // every rank returns the same
      EXPECT_TRUE(test::same_bits(run.loss, r.y));
      EXPECT_TRUE(test::same_bits(run.dh, r.grads[0]));
      EXPECT_EQ(run.sum, pass.state.loss_sum("lm loss"));
    }
    run.loss = r.y;
    run.dh = r.grads[0];
    run.sum = pass.state.loss_sum("lm loss");
  });
  return run;
}

test::Derivatives torch_loss(const at::Tensor& h, const at::Tensor& w, const at::Tensor& labels,
                             double scale) {
  return test::differentiate(
      [&](const auto& in) {
        return at::cross_entropy_loss(in[0].matmul(in[1].t()), labels, {}, at::Reduction::Sum,
                                      kNoTarget) *
               scale;
      },
      {h, w}, at::ones({}, at::kDouble));
}

class VocabLoss : public testing::TestWithParam<std::tuple<int, int64_t>> {
 protected:
  int ranks() const { return std::get<0>(GetParam()); }
  int64_t vocab() const { return std::get<1>(GetParam()); }
};

TEST_P(VocabLoss, IsLibTorchsCrossEntropy) {
  const at::Tensor h = randn({kVocabTokens, kHidden}, 1), w = randn({vocab(), kHidden}, 2);
  for (const bool ignored : {false, true}) {
    const at::Tensor labels = ids_of(vocab(), kVocabTokens, ignored);
    const double scale = 1.0 / 13;
    const LossRun actual = fused_loss(ranks(), h, w, labels, scale);
    const auto expected = torch_loss(h, w, labels, scale);
    expect_close(actual.loss, expected.y, {1e-12, 1e-14});
    EXPECT_NEAR(actual.sum * scale, expected.y.item<double>(), 1e-12);
    expect_close(actual.dh, expected.grads[0], kExactVocab);
    expect_close(actual.dw, expected.grads[1], kExactVocab);
    if (ignored) {
      EXPECT_EQ(actual.dh[1].abs().max().item<double>(), 0);
    }
  }
}

TEST_P(VocabLoss, PaddingRowsChangeNoBit) {
  const at::Tensor h = randn({kVocabTokens, kHidden}, 1), w = randn({vocab(), kHidden}, 2),
                   labels = ids_of(vocab(), kVocabTokens, true);
  const LossRun zeros = fused_loss(ranks(), h, w, labels, 0.1),
                large = fused_loss(ranks(), h, w, labels, 0.1, 1e6);
  EXPECT_TRUE(test::same_bits(zeros.loss, large.loss));
  EXPECT_TRUE(test::same_bits(zeros.dh, large.dh));
  EXPECT_TRUE(test::same_bits(zeros.dw, large.dw));
}

TEST_P(VocabLoss, NoTargetsAtAllAreNoLoss) {
  const LossRun run =
      fused_loss(ranks(), randn({kVocabTokens, kHidden}, 1), randn({vocab(), kHidden}, 2),
                 at::full({kVocabTokens}, kNoTarget, at::kLong), 1);
  EXPECT_EQ(run.loss.item<double>(), 0);
  EXPECT_EQ(run.dh.abs().max().item<double>(), 0);
  EXPECT_EQ(run.dw.abs().max().item<double>(), 0);
}

TEST_P(VocabLoss, LargeLogitsDoNotOverflow) {
  const at::Tensor h = randn({kVocabTokens, kHidden}, 1) * 300, w = randn({vocab(), kHidden}, 2),
                   labels = ids_of(vocab(), kVocabTokens, false);
  const LossRun actual = fused_loss(ranks(), h, w, labels, 1);
  expect_close(actual.loss, torch_loss(h, w, labels, 1).y, {1e-12, 1e-12});
  EXPECT_TRUE(actual.dh.isfinite().all().item<bool>());
}

TEST_P(VocabLoss, TheEmbeddingIsARowOfTheWholeTable) {
  const at::Tensor t = randn({vocab(), kHidden}, 1), p = randn({kVocabTokens + 2, kHidden}, 2),
                   ids = ids_of(vocab(), kVocabTokens, false),
                   dy = randn({kVocabTokens, kHidden}, 3);
  at::Tensor dt = at::zeros_like(t);
  std::mutex mutex;
  for (const bool learned : {false, true}) {
    dt.zero_();
    run_ranks(ranks(), [&](const comm::Group& tp) {
      nn::ShardSpec spec = vocab_spec(vocab(), kHidden);
      spec.name = "table";
      test::Params params;
      nn::Param& table = params.add(spec, at_rank(tp), t);
      nn::Param* positions = learned ? &params.add("positions", p) : nullptr;
      test::Pass pass(kVocabTokens);
      const VocabParallelEmbedding layer(table, positions, tp);
      const at::Tensor y = layer.forward(ids, pass.ctx);
      expect_close(y,
                   t.index_select(0, ids) +
                       (learned ? p.narrow(0, 0, kVocabTokens) : at::zeros({1}, at::kDouble)),
                   kExactVocab);
      y.backward(dy);
      if (learned) {
        expect_close(positions->main_grad().narrow(0, 0, kVocabTokens), dy, kExactVocab);
        EXPECT_EQ(positions->outstanding_uses(), 0);
      }
      EXPECT_EQ(table.outstanding_uses(), 0);
      const VocabShare share = vocab_share(table);
      const at::Tensor padding = table.main_grad().narrow(0, share.real, share.padded - share.real);
      EXPECT_FALSE(padding.ne(0).any().item<bool>()) << "padding rows have no gradient";
      const std::lock_guard lock(mutex);
      nn::store_global(table, table.main_grad(), dt);
    });
    expect_close(dt, at::zeros_like(t).index_add(0, ids, dy), kExactVocab);
  }
}

INSTANTIATE_TEST_SUITE_P(RanksAndSizes, VocabLoss,
                         testing::Combine(testing::Values(1, 2, 4),
                                          testing::Values(1, 2, 63, 64, 65, 131, 257)),
                         [](const auto& info) {
                           return std::to_string(std::get<0>(info.param)) + "_ranks_" +
                                  std::to_string(std::get<1>(info.param));
                         });

TEST(VocabLossChunks, ManyChunksAreOne) {
  // 64-bit logits of 100,000 words are 0.8 MB a token: 169 tokens come in two chunks, the last
  // shorter.
  const int64_t vocab = 100000, tokens = 169, hidden = 2;
  const at::Tensor h = randn({tokens, hidden}, 1), w = randn({vocab, hidden}, 2),
                   labels = ids_of(vocab, tokens, true);
  const LossRun actual = fused_loss(1, h, w, labels, 0.5);
  const auto expected = torch_loss(h, w, labels, 0.5);
  expect_close(actual.loss, expected.y, {1e-12, 0});
  expect_close(actual.dh, expected.grads[0], {1e-10, 1e-12});
  expect_close(actual.dw, expected.grads[1], {1e-10, 1e-12});
}

TEST(VocabLossChunks, OnAGpuAreAPartOfItsMemory) {
  constexpr int64_t kGiB = int64_t{1} << 30;
  EXPECT_EQ(logits_bytes_on_gpu(24 * kGiB), 24 * kGiB / 64);
  EXPECT_EQ(logits_bytes_on_gpu(80 * kGiB), kGiB);
  EXPECT_EQ(logits_bytes_on_gpu(0), kGiB) << "no GPU is here";
}

TEST(VocabLossUse, EvaluationLeavesGradientsAlone) {
  test::Params params;
  nn::ShardSpec spec = vocab_spec(10, kHidden);
  spec.name = "output";
  nn::Param& weight = params.add(spec, {}, randn({10, kHidden}, 1));
  test::Pass pass(kVocabTokens);
  pass.ctx.differentiated = false;
  const at::NoGradGuard no_grad;
  const at::Tensor loss = VocabHead(weight, nullptr, {})
                              .loss(randn({kVocabTokens, kHidden}, 2),
                                    ids_of(10, kVocabTokens, false), "lm loss", pass.ctx);
  EXPECT_FALSE(loss.requires_grad());
  EXPECT_EQ(weight.main_grad().abs().max().item<double>(), 0);
  EXPECT_EQ(weight.outstanding_uses(), 0);
}

TEST(VocabLossUse, AFrozenWeightStillPassesTheGradientOn) {
  test::Params params;
  nn::ShardSpec spec = vocab_spec(10, kHidden);
  spec.name = "output";
  const at::Tensor h = randn({kVocabTokens, kHidden}, 2), w = randn({10, kHidden}, 1);
  nn::Param& weight = params.add(spec, {}, w);
  weight.trainable = false;
  test::Pass pass(kVocabTokens);
  const at::Tensor labels = ids_of(10, kVocabTokens, false);
  const VocabHead loss(weight, nullptr, {});
  const auto r = test::differentiate(
      [&](const auto& in) { return loss.loss(in[0], labels, "lm loss", pass.ctx); }, {h},
      at::ones({}, at::kDouble));
  expect_close(r.grads[0], torch_loss(h, w, labels, 1).grads[0], kExactVocab);
  EXPECT_EQ(weight.main_grad().abs().max().item<double>(), 0);
}

/// A bias is part of the logits, and has the gradient of its column; where most tokens have no
/// target, nothing changes but that they take no part.
TEST_P(VocabLoss, HasABiasAndLeavesOutTokensWithoutATarget) {
  constexpr int64_t kMany = 40;
  const at::Tensor h = randn({kMany, kHidden}, 1), w = randn({vocab(), kHidden}, 2),
                   b = randn({vocab()}, 3);
  for (const int64_t targets : {int64_t{0}, int64_t{5}, kMany}) {
    at::Tensor labels = at::full({kMany}, kNoTarget, at::kLong);
    for (int64_t i = 0; i < targets; ++i) labels[(i * 7) % kMany] = (i * 11) % vocab();
    const auto expected = test::differentiate(
        [&](const auto& in) {
          return at::cross_entropy_loss(in[0].matmul(in[1].t()) + in[2], labels, {},
                                        at::Reduction::Sum, kNoTarget);
        },
        {h, w, b}, at::ones({}, at::kDouble));
    at::Tensor dw = at::zeros_like(w), db = at::zeros_like(b);
    std::mutex mutex;
    run_ranks(ranks(), [&](const comm::Group& tp) {
      nn::ShardSpec spec = vocab_spec(vocab(), kHidden), bias_spec = vocab_bias_spec(vocab());
      spec.name = "output";
      bias_spec.name = "bias";
      test::Params params;
      nn::Param& weight = params.add(spec, at_rank(tp), w);
      nn::Param& bias = params.add(bias_spec, at_rank(tp), b);
      test::Pass pass(kMany);
      const VocabHead head(weight, &bias, tp);
      const auto r = test::differentiate(
          [&](const auto& in) { return head.loss(in[0], labels, "lm loss", pass.ctx); }, {h},
          at::ones({}, at::kDouble));
      expect_close(r.y, expected.y, {1e-12, 1e-14});
      expect_close(r.grads[0], expected.grads[0], kExactVocab);
      expect_close(head.logits(h, {}, pass.ctx), h.matmul(w.t()) + b, kExactVocab);
      EXPECT_EQ(bias.outstanding_uses(), 0);
      const std::lock_guard lock(mutex);
      nn::store_global(weight, weight.main_grad(), dw);
      nn::store_global(bias, bias.main_grad(), db);
    });
    expect_close(dw, expected.grads[1], kExactVocab);
    expect_close(db, expected.grads[2], kExactVocab);
  }
}

/// An adapter beside a frozen output layer, over several chunks: without magnitudes, and with them.
TEST(VocabLossUse, AdaptersTrainInChunks) {
  constexpr int64_t kWords = 100'000, kMany = 169, kRank = 2;
  constexpr double kScale = 1.5;
  const at::Tensor h = randn({kMany, kHidden}, 1), w = randn({kWords, kHidden}, 2),
                   a = randn({kRank, kHidden}, 3), b = randn({kWords, kRank}, 4),
                   m = randn({kWords}, 5).abs() + 0.5;
  const at::Tensor labels = ids_of(kWords, kMany, true);
  const std::vector<std::pair<std::string, at::Tensor>> values = {{"output.weight", w},
                                                                  {"output.lora_A", a},
                                                                  {"output.lora_B", b},
                                                                  {"output.lora_magnitude", m}};
  for (const bool dora : {false, true}) {
    const at::Tensor norms = (w + kScale * b.matmul(a)).square().sum(1).sqrt();
    const auto expected = test::differentiate(
        [&](const auto& in) {
          at::Tensor y = in[0].matmul(w.t()) + kScale * in[0].matmul(in[1].t()).matmul(in[2].t());
          if (dora) y = y * (in[3] / norms);
          return at::cross_entropy_loss(y, labels, {}, at::Reduction::Sum, kNoTarget);
        },
        {h, a, b, m}, at::ones({}, at::kDouble));
    nn::ParamList params;
    nn::AdapterPlan plan{.weights = {}, .dora = dora};
    plan.weights["output.weight"] = {{.name = {}, .rank = kRank, .scale = kScale}};
    const nn::Scope scope = nn::Scope(params, at::kDouble, {}, "output").with_adapters(&plan);
    nn::Param& weight = scope.param("weight", vocab_spec(kWords, kHidden), nn::Init::constant(0));
    weight.trainable = false;
    const VocabHead head(weight, nullptr, {}, 0,
                         VocabAdapters(scope, weight, nn::AdaptedUse::kOutput));
    const size_t held = dora ? 4 : 3;
    ASSERT_EQ(params.size(), held);
    for (size_t i = 0; i < held; ++i) {
      nn::Param& param = params.find(values[i].first);
      param.set_value(at::zeros(param.shape(), at::kDouble));
      param.set_main_grad(at::zeros(param.shape(), at::kDouble));
      nn::load_global(param, values[i].second);
    }
    test::Pass pass(kMany);
    const auto r = test::differentiate(
        [&](const auto& in) { return head.loss(in[0], labels, "lm loss", pass.ctx); }, {h},
        at::ones({}, at::kDouble));
    expect_close(r.y, expected.y, {1e-12, 1e-14});
    expect_close(r.grads[0], expected.grads[0], kExactVocab);
    for (size_t i = 1; i < held; ++i) {
      const nn::Param& param = params.find(values[i].first);
      at::Tensor gradient = at::zeros_like(values[i].second);
      nn::store_global(param, param.main_grad(), gradient);
      expect_close(gradient, expected.grads[i], kExactVocab);
      EXPECT_EQ(param.outstanding_uses(), 0);
    }
  }
}

TEST(RowNorms, RowsOfZerosAreDividedByOne) {
  const at::Tensor norms = norms_to_divide_by(at::tensor({0.0, 9.0}, at::kDouble));
  EXPECT_TRUE(at::equal(norms, at::tensor({1.0, 3.0}, at::kDouble)));
}

/// With DoRA a chunk has its logits twice, and nothing else of that size.
TEST(VocabLossUse, ChunksWithMagnitudesStaySmall) {
  nn::install_counting_allocator();
  constexpr int64_t kWords = 100'000, kMany = 169;
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    nn::ParamList params;
    nn::AdapterPlan plan{.weights = {}, .dora = true};
    plan.weights["output.weight"] = {{.name = {}, .rank = 2, .scale = 1}};
    const nn::Scope scope = nn::Scope(params, type, {}, "output").with_adapters(&plan);
    nn::Param& weight = scope.param("weight", vocab_spec(kWords, kHidden), nn::Init::constant(0));
    const VocabHead head(weight, nullptr, {}, 0,
                         VocabAdapters(scope, weight, nn::AdaptedUse::kOutput));
    for (nn::Param& param : params) {
      param.trainable = &param != &weight;
      param.set_value(at::ones(param.shape(), type));
      param.set_main_grad(at::zeros(param.shape(), at::kFloat));
    }
    const at::Tensor h = randn({kMany, kHidden}, 1).to(type).requires_grad_();
    const at::Tensor labels = ids_of(kWords, kMany, true);
    test::Pass pass(kMany);
    for (const bool trains : {true, false}) {
      const nn::MemoryUse before = nn::memory_snapshot(comm::current_rank()).total;
      nn::reset_memory_peak(comm::current_rank());
      const at::AutoGradMode mode(trains);
      head.loss(h, labels, "lm loss", pass.ctx);
      const auto peak = static_cast<double>(
          nn::memory_snapshot(comm::current_rank()).total.peak_bytes - before.current_bytes);
      // At most 128 MiB: in fp32 the 85 tokens of a chunk have 34 MB, twice where they train.
      EXPECT_LT(peak, trains ? 85e6 : 80e6) << type;
      EXPECT_GT(peak, 30e6) << type;
    }
  }
}

TEST(VocabLossUse, LossSumsAddUpOverMicrobatches) {
  test::Params params;
  nn::ShardSpec spec = vocab_spec(10, kHidden);
  spec.name = "output";
  nn::Param& weight = params.add(spec, {}, randn({10, kHidden}, 1));
  const VocabHead loss(weight, nullptr, {});
  test::Pass pass(kVocabTokens);
  const at::Tensor labels = ids_of(10, kVocabTokens, true);
  const at::Tensor h = randn({kVocabTokens, kHidden}, 2);
  loss.loss(h, labels, "lm loss", pass.ctx);
  const double once = pass.state.loss_sum("lm loss");
  loss.loss(h, labels, "lm loss", pass.ctx);
  EXPECT_DOUBLE_EQ(pass.state.loss_sum("lm loss"), 2 * once);
}

} // namespace
} // namespace pentatron::parallel
