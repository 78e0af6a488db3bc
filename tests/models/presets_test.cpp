// Presets are the published models: their parameter counts, by the config's formula and by what a
// model registers, without allocating them.
#include "pentatron/models/presets.h"

#include "pentatron/base/error.h"
#include "pentatron/models/model.h"
#include "tests/support/model_cost.h"
#include "tests/support/ranks.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

namespace pentatron::models {
namespace {

/// Counts of the released checkpoints (the sum of their tensors' sizes, tied weights once), and, of
/// what came after the Llamas, what transformers 5.23 makes of their config.json. Those of BERT
/// have both heads of its pre-training.
const std::map<std::string, int64_t> kPublished = {{"gpt2_124m", 124439808},
                                                   {"gpt2_355m", 354823168},
                                                   {"gpt2_774m", 774030080},
                                                   {"gpt2_1.5b", 1557611200},
                                                   {"llama1_7b", 6738415616},
                                                   {"llama2_7b", 6738415616},
                                                   {"llama2_13b", 13015864320},
                                                   {"llama2_70b", 68976648192},
                                                   {"llama3_8b", 8030261248},
                                                   {"llama3_70b", 70553706496},
                                                   {"llama3.1_8b", 8030261248},
                                                   {"llama3.1_70b", 70553706496},
                                                   {"llama3.1_405b", 405853388800},
                                                   {"llama3.2_1b", 1235814400},
                                                   {"llama3.2_3b", 3212749824},
                                                   {"mistral_7b", 7241732096},
                                                   {"qwen2.5_0.5b", 494032768},
                                                   {"qwen2.5_1.5b", 1543714304},
                                                   {"qwen2.5_3b", 3085938688},
                                                   {"qwen2.5_7b", 7615616512},
                                                   {"qwen2.5_14b", 14770033664},
                                                   {"qwen2.5_32b", 32763876352},
                                                   {"qwen2.5_72b", 72706203648},
                                                   {"qwen3_0.6b", 596049920},
                                                   {"qwen3_1.7b", 1720574976},
                                                   {"qwen3_4b", 4022468096},
                                                   {"qwen3_8b", 8190735360},
                                                   {"qwen3_14b", 14768307200},
                                                   {"qwen3_32b", 32762123264},
                                                   {"phi3_mini_4k", 3821079552},
                                                   {"olmo2_1b", 1484916736},
                                                   {"olmo2_7b", 7298617344},
                                                   {"glm4_9b", 9400279040},
                                                   {"gemma2_2b", 2614341888},
                                                   {"gemma3_1b", 999885952},
                                                   {"moonlight_16b", 15960108544},
                                                   {"deepseek_v3", 671026404352},
                                                   {"bert_base", 110106428},
                                                   {"bert_large", 336226108},
                                                   {"roberta_base", 124697433},
                                                   {"t5_small", 60506624},
                                                   {"t5_base", 222903552},
                                                   {"t5_v1_1_base", 247577856},
                                                   {"flan_t5_small", 76961152},
                                                   {"mixtral_8x7b", 46702792704},
                                                   {"mixtral_8x22b", 140620634112},
                                                   {"qwen1.5_moe_a2.7b", 14315784192},
                                                   {"qwen3_30b_a3b", 30532122624},
                                                   {"qwen3_235b_a22b", 235093634560},
                                                   {"olmoe_1b_7b", 6919161856},
                                                   {"gpt_oss_20b", 20914757184},
                                                   {"gpt_oss_120b", 116829156672}};

/// Narayanan et al. 2021 (arXiv:2104.04473), table 1: layers, hidden size, billions of parameters.
struct WeakScaling {
  int64_t layers, hidden;
  double billions;
};
const std::map<std::string, WeakScaling> kWeakScaling = {
    {"gpt3_1.7b", {24, 2304, 1.7}},    {"gpt3_3.6b", {30, 3072, 3.6}},
    {"gpt3_7.5b", {36, 4096, 7.5}},    {"gpt3_18b", {40, 6144, 18.4}},
    {"gpt3_39b", {48, 8192, 39.1}},    {"gpt3_76b", {60, 10240, 76.1}},
    {"gpt3_145b", {80, 12288, 145.6}}, {"gpt3_175b", {96, 12288, 174.6}},
    {"gpt3_310b", {96, 16384, 310.1}}, {"gpt3_530b", {105, 20480, 529.6}},
    {"gpt3_1t", {128, 25600, 1008.0}}};

TEST(PresetCost, FlopsOfTheWeakScalingModelsAreTheirEquation) {
  for (const auto& [name, row] : kWeakScaling) {
    // Their equation 3 for one sample of 2048 tokens, without recomputation (72 in place of 96) and
    // with the causal half of attention: 72 s l h^2 (1 + s / 12h + V / 12lh).
    const double s = 2048, l = static_cast<double>(row.layers), h = static_cast<double>(row.hidden);
    const double expected = 72 * s * l * h * h * (1 + s / (12 * h) + 51200 / (12 * l * h));
    const nn::Cost cost =
        test::model_cost(preset(name), {{.tokens = 2048, .squared_lengths = 2048 * 2048}});
    EXPECT_NEAR(cost.total_flops(), expected, 1e-12 * expected) << name;
  }
}

class Preset : public testing::TestWithParam<std::string> {};

TEST_P(Preset, HasThePublishedNumberOfParameters) {
  const ModelConfig config = preset(GetParam());
  if (const auto entry = kPublished.find(GetParam()); entry != kPublished.end()) {
    EXPECT_EQ(config.num_parameters(), entry->second);
    return;
  }
  ASSERT_TRUE(kWeakScaling.contains(GetParam())) << "a preset without a published count";
  const WeakScaling& row = kWeakScaling.at(GetParam());
  const int64_t l = row.layers, h = row.hidden;
  // Their equation 2, P = 12 l h^2 (1 + 13 / 12h + (V + s) / 12lh), and the final norm's 2 h.
  EXPECT_EQ(config.num_parameters(), 12 * l * h * h + 13 * l * h + (51200 + 2048) * h + 2 * h);
  EXPECT_NEAR(static_cast<double>(config.num_parameters()) / 1e9, row.billions,
              0.06 + 1e-3 * row.billions);
}

TEST_P(Preset, RegistersParametersWithoutStorage) {
  const auto model = make_model(preset(GetParam()), {});
  std::set<std::string> names;
  for (const nn::Param& param : model->params()) {
    EXPECT_TRUE(names.insert(param.name()).second) << param.name() << " twice";
    EXPECT_FALSE(param.value().defined());
  }
}

/// Of a forward pass, by its weights and by the layers' own counts.
void expect_products_of_weights(const ModelConfig& config) {
  const auto model = make_model(config, {});
  const ModelSpec& spec = model->spec();
  std::vector<int64_t> lengths = {30, 20};
  lengths.resize(spec.streams.size());
  std::vector<nn::LayerShape> shapes = stream_shapes(spec, 2, lengths);
  shapes.back().head_rows = 7;
  std::vector<double> flops(spec.segments.size());
  for (const nn::Param& param : model->params()) {
    const auto segment = static_cast<size_t>(param.segments().back());
    flops[segment] +=
        nn::product_flops(param, shapes[static_cast<size_t>(spec.segments[segment].stream)]);
  }
  for (size_t i = 0; i < flops.size(); ++i) {
    const double counted = segment_cost(config, shapes, static_cast<int64_t>(i)).forward_gemm_flops;
    EXPECT_NEAR(flops[i], counted, 1e-12 * counted) << spec.segments[i].name;
  }
}

TEST_P(Preset, MakesTheProductsThatItsCostCounts) {
  expect_products_of_weights(preset(GetParam()));
}

TEST(PresetCost, IsOfTheProductsOfOtherLayersToo) {
  ModelConfig latent = preset("qwen3_30b_a3b");
  latent.num_layers = 2;
  latent.moe_latent_size = 256;
  expect_products_of_weights(latent);
  ModelConfig depths = preset("llama3.2_1b"); // tied
  depths.mtp_num_layers = 2;
  expect_products_of_weights(depths);
}

TEST_P(Preset, IsAValidConfig) {
  const ModelConfig config = preset(GetParam());
  config::Violations violations;
  config.validate(violations, "model");
  EXPECT_TRUE(violations.empty());
  EXPECT_EQ(config.preset, GetParam());
}

INSTANTIATE_TEST_SUITE_P(All, Preset, testing::ValuesIn(preset_names()), [](const auto& info) {
  std::string name = info.param;
  for (char& c : name)
    if (c == '.') c = '_';
  return name;
});

TEST(Presets, AnUnknownNameSuggestsTheNearest) {
  const std::string message = test::error_of([] { preset("lama2_7b"); });
  EXPECT_NE(message.find("model.preset=lama2_7b"), std::string::npos) << message;
  EXPECT_NE(message.find("llama2_7b"), std::string::npos) << message;
  EXPECT_THROW(preset("lama2_7b"), ConfigError);
}

} // namespace
} // namespace pentatron::models
