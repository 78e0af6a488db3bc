#include "pentatron/models/gpt/gpt.h"

#include "pentatron/base/error.h"
#include "pentatron/comm/collectives.h"
#include "pentatron/models/presets.h"
#include "pentatron/nn/memory/counting_allocator.h"
#include "pentatron/nn/param_store.h"
#include "tests/nn/op_fixture.h"
#include "tests/support/model_cost.h"
#include "tests/support/model_pass.h"
#include "tests/support/ranks.h"

#include <gtest/gtest.h>

#include <cmath>
#include <mutex>
#include <set>

namespace pentatron::models {
namespace {

constexpr int64_t kBatch = 2, kSequence = 10, kTokens = kBatch * kSequence;

/// GPT-2's kind.
ModelConfig learned() {
  ModelConfig c;
  c.num_layers = 3;
  c.hidden_size = 24;
  c.num_attention_heads = 4;
  c.vocab_size = 131;
  c.max_position_embeddings = 16;
  c.position_embedding_type = PositionEmbedding::kLearnedAbsolute;
  c.normalization = Normalization::kLayerNorm;
  c.activation_func = ActivationFunction::kGeluTanh;
  c.add_qkv_bias = c.add_attention_proj_bias = c.add_mlp_bias = true;
  return c;
}

/// Everything else.
ModelConfig rotary() {
  ModelConfig c;
  c.num_layers = 3;
  c.hidden_size = 24;
  c.num_attention_heads = 4;
  c.num_query_groups = 2;
  c.kv_channels = 8;
  c.ffn_hidden_size = 40;
  c.vocab_size = 131;
  c.max_position_embeddings = 16;
  c.qk_layernorm = true;
  c.softmax_type = SoftmaxType::kLearnable;
  c.window_size = 4;
  c.full_attention_layers = {1};
  c.untie_embeddings_and_output_weights = true;
  return c;
}

struct Model {
  explicit Model(const ModelConfig& config, const comm::Group& tp = {},
                 at::ScalarType dtype = at::kDouble, bool recompute = false)
      : gpt(config, {.dtype = dtype, .tp = tp, .chunks = {.recompute = {.layers = recompute}}}),
        store(gpt.params(), at::kCPU) {
    gpt.finish(at::kCPU, {kSequence});
    gpt.initialize(5);
  }
  Gpt gpt;
  nn::ResidentStore store;
};

at::Tensor ids() {
  return at::arange(kTokens, at::kLong) * 7 % 131;
}

class GptTest : public testing::TestWithParam<bool> {
 protected:
  ModelConfig config() const { return GetParam() ? learned() : rotary(); }
};

TEST_P(GptTest, StartsWithTheSameBitsOnEveryNumberOfRanks) {
  std::vector<std::map<std::string, at::Tensor>> runs;
  for (const int ranks : {1, 2}) {
    std::map<std::string, at::Tensor> weights;
    std::mutex mutex;
    test::run_ranks(ranks, [&](const comm::Group& tp) {
      Model model(config(), tp);
      const std::lock_guard lock(mutex);
      for (const nn::Param& param : model.gpt.params()) {
        auto [entry, fresh] = weights.try_emplace(param.name());
        if (fresh) entry->second = at::full(param.spec().shape, -7.0, at::kDouble);
        nn::store_global(param, param.value(), entry->second);
      }
    });
    runs.push_back(weights);
  }
  for (const auto& [name, weight] : runs[0])
    EXPECT_TRUE(test::same_bits(weight, runs[1].at(name))) << name;
}

TEST(GptEmbedding, TheMultiplierScalesWordsAndNotPositions) {
  ModelConfig c = learned();
  c.untie_embeddings_and_output_weights = true;
  Model scaled_by_hand(c);
  c.embedding_multiplier = 3;
  Model scaled(c);
  scaled_by_hand.gpt.params().find("embedding.word.weight").value().mul_(3);
  const auto logits = [](Model& model) {
    return test::logits(model.gpt, model.store, ids(),
                        nn::SequenceLayout::dense(kBatch, kSequence, {0, 1}, at::kCPU));
  };
  test::expect_close(logits(scaled), logits(scaled_by_hand), {1e-12, 1e-12});
}

TEST_P(GptTest, InitialWeightsHaveTheConfiguredSpread) {
  for (const bool scaled : {false, true}) {
    ModelConfig c = config();
    c.num_layers = 8;
    c.hidden_size = 64;
    c.init_method_std = 0.03;
    c.embedding_init_method_std = 0.5;
    c.use_scaled_init_method = scaled;
    Model model(c);
    for (const nn::Param& param : model.gpt.params()) {
      SCOPED_TRACE(param.name());
      at::Tensor global = at::zeros(param.spec().shape, at::kDouble); // without padding
      nn::store_global(param, param.value(), global);
      const std::string& name = param.name();
      double expected = 0.03;
      if (name.starts_with("embedding.")) expected = 0.5;
      if (scaled && (name.ends_with("proj.weight") || name.ends_with("fc2.weight")))
        expected = 0.03 / std::sqrt(16.0); // 2 x 8 additions to the residual stream
      if (param.shape().size() == 1) {     // norms, biases, sinks
        const double constant = name.find("norm.weight") != std::string::npos ? 1 : 0;
        EXPECT_TRUE(global.eq(constant).all().item<bool>());
        continue;
      }
      const double error = 4.5 / std::sqrt(2.0 * static_cast<double>(global.numel()));
      EXPECT_NEAR(global.std().item<double>(), expected, expected * error);
    }
  }
}

TEST_P(GptTest, CostIsSixFlopsAWeightAndTokenPlusAttention) {
  ModelConfig c = config();
  c.window_size.reset();
  c.full_attention_layers.clear();
  // Weights that take part in a matrix product: all but embeddings, norms, biases and sinks.
  double weights = 0;
  Model model(c);
  for (const nn::Param& param : model.gpt.params()) {
    if (param.spec().shape.size() == 2 && !param.name().starts_with("embedding."))
      weights += static_cast<double>(param.spec().numel());
  }
  if (!c.untie_embeddings_and_output_weights)
    weights += static_cast<double>(c.vocab_size * c.hidden_size);
  const nn::Cost cost =
      test::model_cost(c, {{.tokens = kTokens, .squared_lengths = kBatch * kSequence * kSequence}});
  // Scores and their use: 2 x 2 s^2 n d a layer and sample, half of it visible, three passes.
  const double attention = 6.0 * static_cast<double>(c.num_layers) * kBatch * kSequence *
                           kSequence * static_cast<double>(c.num_attention_heads * c.head_size());
  EXPECT_DOUBLE_EQ(cost.total_flops(), 6 * weights * kTokens + attention);
}

TEST_P(GptTest, CostCountsTheBytesKeptForBackward) {
  nn::install_counting_allocator();
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
    for (const int ranks : {1, 2}) {
      for (const bool recompute : {false, true}) {
        test::run_ranks(ranks, [&](const comm::Group& tp) {
          Model model(config(), tp, dtype, recompute);
          test::Pass pass(nn::SequenceLayout::dense(kBatch, kSequence, {0, 1}, at::kCPU));
          pass.batch.fields = {{"input_ids", ids()}, {"labels", at::roll(ids(), -1)}};
          const auto held = [&] {
            return nn::memory_snapshot(tp.rank())[nn::MemoryCategory::kActivations].current_bytes;
          };
          const nn::MemoryScope scope(nn::MemoryCategory::kActivations);
          const int64_t before = held();
          nn::Tape tape;
          model.gpt.whole().forward({}, pass.ctx, model.store, &tape);
          pass.results.clear();
          comm::barrier(tp); // a peer still in a collective holds this rank's part of it
          const nn::LayerShape shape{.tokens = kTokens,
                                     .squared_lengths = kBatch * kSequence * kSequence,
                                     .element_bytes = static_cast<int64_t>(c10::elementSize(dtype)),
                                     .acc_bytes = dtype == at::kDouble ? 8 : 4,
                                     .tp = ranks};
          int64_t expected = test::model_cost(config(), {shape}).saved_bytes;
          if (recompute) { // layers keep their input only
            const int64_t layers = config().num_layers;
            expected = segment_cost(config(), {shape}, 0).saved_bytes +
                       layers * kTokens * config().hidden_size * shape.element_bytes +
                       segment_cost(config(), {shape}, layers + 1).saved_bytes;
          }
          EXPECT_EQ(held() - before, expected) << dtype << " on " << ranks << " " << recompute;
          EXPECT_EQ(tape.saved().bytes({pass.batch.field("input_ids"), pass.layout.positions,
                                        pass.layout.row_ids}),
                    expected);
          model.gpt.whole().backward({}, pass.ctx, model.store, tape);
          comm::barrier(tp);
          EXPECT_EQ(held(), before) << "nothing is left after backward";
        });
      }
    }
  }
}

TEST_P(GptTest, LogitsAreThoseOfTheLoss) {
  std::vector<at::Tensor> logits(2);
  for (const int ranks : {1, 2}) {
    test::run_ranks(ranks, [&](const comm::Group& tp) {
      Model model(config(), tp);
      test::Pass pass(nn::SequenceLayout::dense(kBatch, kSequence, {0, 1}, at::kCPU));
      const at::Tensor labels = at::roll(ids(), -1);
      pass.batch.fields = {{"input_ids", ids()}, {"labels", labels}};
      pass.ctx.wanted.logits = true;
      model.gpt.whole().forward({}, pass.ctx, model.store, nullptr);
      const at::Tensor loss = pass.results.at("loss"), all = pass.results.at("logits");
      ASSERT_EQ(all.sizes(), (at::IntArrayRef{kTokens, 131}));
      test::expect_close(loss, at::cross_entropy_loss(all, labels, {}, at::Reduction::Sum),
                         {1e-12, 0});
      if (tp.rank() == 0) logits[static_cast<size_t>(ranks - 1)] = all;
    });
  }
  test::expect_close(logits[1], logits[0], {1e-11, 1e-12});
}

TEST_P(GptTest, PackedDocumentsNeverSeeEachOther) {
  Model model(config());
  const auto logits = [&](const at::Tensor& tokens) {
    return test::logits(
        model.gpt, model.store, tokens,
        nn::SequenceLayout::packed(kBatch, kSequence, {0, 1}, {0, 4, 10, 20}, true, at::kCPU));
  };
  const at::Tensor changed = ids().clone();
  changed.narrow(0, 4, 6).add_(1);
  const at::Tensor a = logits(ids()), b = logits(changed);
  EXPECT_TRUE(test::same_bits(a.narrow(0, 0, 4), b.narrow(0, 0, 4)));
  EXPECT_TRUE(test::same_bits(a.narrow(0, 10, 10), b.narrow(0, 10, 10)));
  EXPECT_FALSE(test::same_bits(a, b));
  // Positions start again: a document alone has the same logits.
  test::expect_close(test::logits(model.gpt, model.store, ids().narrow(0, 4, 6),
                                  nn::SequenceLayout::dense(1, 6, {0}, at::kCPU)),
                     a.narrow(0, 4, 6), {1e-11, 1e-12});
}

INSTANTIATE_TEST_SUITE_P(Kinds, GptTest, testing::Bool(), [](const auto& info) {
  return std::string(info.param ? "learned" : "rotary");
});

TEST(GptLayers, FollowTheConfig) {
  ModelConfig c = rotary();
  c.scale_attn_by_inverse_layer_idx = true;
  c.softmax_scale = 0.5;
  const auto first = layer_options(c, 0), second = layer_options(c, 1);
  EXPECT_EQ(first.attention.window, 4);
  EXPECT_EQ(second.attention.window, 0) << "full_attention_layers";
  EXPECT_DOUBLE_EQ(first.attention.scale, 0.5);
  EXPECT_DOUBLE_EQ(second.attention.scale, 0.25);
  // No two dropouts of a model draw one mask.
  std::set<uint32_t> sites = {0}; // the embedding
  for (int64_t i = 0; i < 5; ++i) {
    const auto o = layer_options(c, i);
    EXPECT_TRUE(sites.insert(o.dropout_site).second);
    EXPECT_TRUE(sites.insert(o.dropout_site + 1).second);
    sites.insert(o.attention.dropout_site); // of another stream
  }
}

TEST(GptErrors, SequencesLongerThanTheModelSayWhatToSet) {
  Gpt model(learned(), {});
  const std::string message = test::error_of([&] { model.finish(at::kCPU, {17}); });
  EXPECT_NE(message.find("model.max_position_embeddings=16"), std::string::npos) << message;
  EXPECT_NE(message.find("try: model.max_position_embeddings=17"), std::string::npos) << message;
  EXPECT_THROW(model.finish(at::kCPU, {17}), ConfigError);
  EXPECT_NO_THROW(model.finish(at::kCPU, {16}));
}

} // namespace
} // namespace pentatron::models
