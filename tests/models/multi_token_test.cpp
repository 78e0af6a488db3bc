#include "pentatron/models/gpt/multi_token.h"

#include "pentatron/comm/collectives.h"
#include "pentatron/models/gpt/gpt.h"
#include "pentatron/nn/memory/counting_allocator.h"
#include "pentatron/nn/param_store.h"
#include "tests/nn/op_fixture.h"
#include "tests/support/model_cost.h"
#include "tests/support/model_pass.h"
#include "tests/support/ranks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace pentatron::models {
namespace {

constexpr int64_t kSamples = 2, kLength = 10, kTokensInAll = kSamples * kLength;

ModelConfig config_of(bool learned, int64_t depths) {
  ModelConfig c;
  c.num_layers = 2;
  c.hidden_size = 24;
  c.num_attention_heads = 4;
  c.vocab_size = 131;
  c.max_position_embeddings = 16;
  c.mtp_num_layers = depths;
  if (learned) {
    c.position_embedding_type = PositionEmbedding::kLearnedAbsolute;
    c.normalization = Normalization::kLayerNorm;
    c.activation_func = ActivationFunction::kGeluTanh;
  } else {
    c.untie_embeddings_and_output_weights = true;
    c.window_size = 4;
    c.full_attention_layers = {0};
  }
  return c;
}

/// A pass with everything that training gives it.
struct TrainingPass : test::Pass {
  explicit TrainingPass(const ModelConfig& c)
      : Pass(nn::SequenceLayout::dense(kSamples, kLength, {0, 1}, at::kCPU)) {
    const at::Tensor ids = at::arange(kTokensInAll, at::kLong) * 7 % 131;
    batch.fields = {{"input_ids", ids}, {"labels", at::roll(ids, -1)}};
    for (const data::ShiftedField& field : mtp_fields(c))
      batch.fields[field.name] = field.source.empty()
                                     ? (layout.positions.to(at::kLong) + field.places).clamp_max(15)
                                     : at::roll(batch.fields.at(field.source), -field.places);
    for (const LossTerm& term : model_spec(c).losses) ctx.loss_scales[term.name] = term.weight;
  }
};

class MultiTokenTest : public testing::TestWithParam<bool> {};

TEST_P(MultiTokenTest, CostCountsTheBytesKeptForBackward) {
  nn::install_counting_allocator();
  for (const int64_t depths : {1, 2, 3}) {
    const ModelConfig c = config_of(GetParam(), depths);
    for (const int ranks : {1, 2}) {
      test::run_ranks(ranks, [&](const comm::Group& tp) {
        Gpt model(c, {.dtype = at::kDouble, .tp = tp});
        nn::ResidentStore store(model.params(), at::kCPU);
        model.finish(at::kCPU, {kLength});
        model.initialize(5);
        TrainingPass pass(c);
        const auto held = [&] {
          return nn::memory_snapshot(tp.rank())[nn::MemoryCategory::kActivations].current_bytes;
        };
        const nn::MemoryScope scope(nn::MemoryCategory::kActivations);
        const int64_t before = held();
        nn::Tape tape;
        model.whole().forward({}, pass.ctx, store, &tape);
        pass.results.clear();
        comm::barrier(tp);
        const nn::LayerShape shape{.tokens = kTokensInAll,
                                   .squared_lengths = kSamples * kLength * kLength,
                                   .element_bytes = 8,
                                   .acc_bytes = 8,
                                   .tp = ranks};
        EXPECT_EQ(held() - before, test::model_cost(c, {shape}).saved_bytes)
            << depths << " on " << ranks;
        model.whole().backward({}, pass.ctx, store, tape);
        comm::barrier(tp);
        EXPECT_EQ(held(), before) << "nothing is left after backward";
      });
    }
  }
}

TEST_P(MultiTokenTest, CostsALayerAProductAndTheOutputLayerOnceMore) {
  const ModelConfig c = config_of(GetParam(), 2);
  const std::vector<nn::LayerShape> shapes = {
      {.tokens = kTokensInAll, .squared_lengths = kSamples * kLength * kLength}};
  const double layer = segment_cost(c, shapes, c.num_layers).total_flops(),
               h = static_cast<double>(c.hidden_size), vocab = static_cast<double>(c.vocab_size);
  EXPECT_DOUBLE_EQ(test::model_cost(c, shapes).total_flops() -
                       test::model_cost(c.without_mtp(), shapes).total_flops(),
                   2 * (layer + 6 * kTokensInAll * (2 * h * h + h * vocab)));
  const int64_t block =
      (c.with_one_layer().num_parameters() - c.without_mtp().with_one_layer().num_parameters()) / 2;
  EXPECT_EQ(c.num_parameters(), c.without_mtp().num_parameters() + 2 * block);
}

TEST_P(MultiTokenTest, IsNotComputedInAPassWithoutItsScale) {
  const ModelConfig c = config_of(GetParam(), 2);
  std::map<std::string, at::Tensor> logits;
  for (const ModelConfig& config : {c, c.without_mtp()}) {
    Gpt model(config, {.dtype = at::kDouble});
    nn::ResidentStore store(model.params(), at::kCPU);
    model.finish(at::kCPU, {kLength});
    model.initialize(5);
    const std::string key = std::to_string(config.mtp_num_layers);
    logits[key] = test::logits(model, store, at::arange(kTokensInAll, at::kLong) * 7 % 131,
                               nn::SequenceLayout::dense(kSamples, kLength, {0, 1}, at::kCPU));
    // With a backward pass, too.
    TrainingPass pass(config);
    std::erase_if(pass.ctx.loss_scales, [](const auto& term) { return term.first != "lm loss"; });
    nn::Tape tape;
    model.whole().forward({}, pass.ctx, store, &tape);
    model.whole().backward({}, pass.ctx, store, tape);
    for (const nn::Param& param : model.params())
      EXPECT_EQ(param.main_grad().count_nonzero().item<int64_t>() == 0,
                param.name().starts_with("mtp."))
          << param.name();
  }
  EXPECT_TRUE(test::same_bits(logits.at("0"), logits.at("2")));
}

INSTANTIATE_TEST_SUITE_P(Kinds, MultiTokenTest, testing::Bool(), [](const auto& info) {
  return std::string(info.param ? "learned" : "rotary");
});

TEST(MultiTokenSpec, LayersAreOfTheKindOfTheLast) {
  ModelConfig c = config_of(false, 2);
  c.num_moe_experts = 4;
  c.moe_layer_freq = "[0,1]";
  const ModelSpec spec = model_spec(c);
  EXPECT_THAT(spec.expert_layers,
              testing::ElementsAre("layers.1.mlp", "mtp.0.layer.mlp", "mtp.1.layer.mlp"));
  c.moe_layer_freq = "[1,0]";
  EXPECT_THAT(model_spec(c).expert_layers, testing::ElementsAre("layers.0.mlp"));
  EXPECT_FALSE(c.with_one_layer().is_moe_layer(c.with_one_layer().num_layers - 1));
  for (const int64_t i : {2, 3}) {
    EXPECT_EQ(layer_options(c, i).attention.window, 4);
    EXPECT_NE(layer_options(c, i).dropout_site, layer_options(c, i - 1).dropout_site);
  }
  EXPECT_GT(site_behind_layers(c), layer_options(c, 3).dropout_site + 1);
}

TEST(MultiTokenSpec, LossesAreOfTrainingAlone) {
  ModelConfig c = config_of(false, 2);
  c.mtp_loss_scaling_factor = 0.5;
  const ModelSpec spec = model_spec(c);
  ASSERT_EQ(spec.losses.size(), 3u);
  EXPECT_EQ(spec.num_evaluated(), 1);
  EXPECT_EQ(spec.losses[1].name, "mtp_1 loss");
  EXPECT_EQ(spec.losses[2].weight, 0.25);
  EXPECT_EQ(spec.segments.back().takes, (std::vector<int>{0, 1, 2}));
  EXPECT_THAT(spec.shared.at(0).segments, testing::ElementsAre(0, 3, 4));
}

} // namespace
} // namespace pentatron::models
