// Drawing tokens: against counted frequencies, and against the arg max of a full forward pass.
#include "pentatron/generate/generate.h"

#include <ATen/ATen.h>

#include <cmath>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "pentatron/base/philox.h"
#include "tests/support/ranks.h"

namespace pentatron::generate {
namespace {

using test::error_of;
using ::testing::HasSubstr;

/// Shares of 20000 draws.
std::vector<double> frequencies(const std::vector<double>& logits, const SamplingOptions& options) {
  const Stream stream(7, "test");
  std::vector<double> share(logits.size());
  constexpr int kDraws = 20000;
  for (uint64_t i = 0; i < kDraws; ++i)
    share[static_cast<size_t>(sample_token(logits, options, stream.uniform(i)))] += 1.0 / kDraws;
  return share;
}

void expect_shares(const std::vector<double>& got, const std::vector<double>& expected) {
  for (size_t i = 0; i < expected.size(); ++i) {
    if (expected[i] == 0) {
      EXPECT_EQ(got[i], 0) << i;
    }
    EXPECT_NEAR(got[i], expected[i], 0.015) << i; // 4 standard deviations
  }
}

// Probabilities 0.1, 0.4, 0.2, 0.3.
const std::vector<double> kLogits = {std::log(0.1), std::log(0.4), std::log(0.2), std::log(0.3)};

TEST(SampleToken, FollowsTheProbabilities) {
  expect_shares(frequencies(kLogits, {.temperature = 1, .top_p = 1}), {0.1, 0.4, 0.2, 0.3});
}

TEST(SampleToken, TemperatureSharpens) {
  const double z = 0.01 + 0.16 + 0.04 + 0.09;
  expect_shares(frequencies(kLogits, {.temperature = 0.5, .top_p = 1}),
                {0.01 / z, 0.16 / z, 0.04 / z, 0.09 / z});
  expect_shares(frequencies(kLogits, {.temperature = 1e-9, .top_p = 1}), {0, 1, 0, 0});
}

TEST(SampleToken, TopKKeepsTheLikeliest) {
  expect_shares(frequencies(kLogits, {.temperature = 1, .top_k = 2, .top_p = 1}),
                {0, 4.0 / 7, 0, 3.0 / 7});
  expect_shares(frequencies(kLogits, {.temperature = 1, .top_k = 99, .top_p = 1}),
                {0.1, 0.4, 0.2, 0.3});
}

TEST(SampleToken, TopPKeepsTheSmallestSetThatReachesIt) {
  expect_shares(frequencies(kLogits, {.temperature = 1, .top_p = 0.65}), {0, 4.0 / 7, 0, 3.0 / 7});
  expect_shares(frequencies(kLogits, {.temperature = 1, .top_p = 0.75}),
                {0, 4.0 / 9, 2.0 / 9, 3.0 / 9});
  expect_shares(frequencies(kLogits, {.temperature = 1, .top_p = 1e-9}), {0, 1, 0, 0});
}

TEST(SampleToken, TemperatureZeroIsTheLikeliestAndTheLowestOfEquals) {
  EXPECT_EQ(sample_token({1, 5, 5, 2}, {.temperature = 0}, 0.99), 1);
  EXPECT_EQ(sample_token({1, 5, 5, 9}, {.temperature = 0, .num_tokens = 3}, 0.99), 1);
}

TEST(SampleToken, TheEndsOfTheIntervalAreTokens) {
  for (const double u : {0.0, std::nextafter(1.0, 0.0)}) {
    const int64_t token = sample_token(kLogits, {.temperature = 1, .top_p = 1}, u);
    EXPECT_EQ(token, u == 0.0 ? 1 : 0);
  }
}

TEST(SampleToken, RefusesOptionsOutOfRangeAndOutputThatIsNotFinite) {
  const double nan = std::nan("");
  for (const auto& [options, text] :
       {std::pair<SamplingOptions, const char*>{{.temperature = -1}, "temperature=-1"},
        {{.temperature = nan}, "temperature=nan"},
        {{.top_k = -2}, "top_k=-2"},
        {{.top_p = 0}, "top_p=0"},
        {{.top_p = 1.5}, "top_p=1.5"},
        {{.top_p = nan}, "top_p=nan"},
        {{.max_tokens = -3}, "max_tokens=-3"}}) {
    EXPECT_THAT(error_of([&] { sample_token(kLogits, options, 0.5); }), HasSubstr(text));
  }
  EXPECT_THAT(error_of([&] { sample_token({1, nan, 2}, {}, 0.5); }), HasSubstr("not finite"));
  EXPECT_THAT(error_of([&] { sample_token({1, INFINITY}, {}, 0.5); }), HasSubstr("not finite"));
}

build::RankModel small_model() {
  models::GptConfig config;
  config.num_layers = 2;
  config.hidden_size = 32;
  config.num_attention_heads = 2;
  config.vocab_size = 61;
  config.max_position_embeddings = 12;
  config.init_method_std = 0.3;
  build::RankModel model = build::make_model(
      {.config = config, .dtype = at::kDouble, .max_sequence = 12, .gradients = false}, {});
  model.gpt->initialize(3);
  return model;
}

TEST(Generate, IsTheArgMaxOfAFullForwardPassStepByStep) {
  build::RankModel model = small_model();
  std::vector<int64_t> text = {5, 17}, seen;
  const std::vector<int64_t> drawn =
      generate(model, text, {.max_tokens = 20, .temperature = 0, .context = 12},
               [&](int64_t token) { seen.push_back(token); });
  EXPECT_EQ(seen, drawn);
  ASSERT_EQ(drawn.size(), 20u);
  for (const int64_t token : drawn) {
    const size_t begin = text.size() > 12 ? text.size() - 12 : 0; // the context slides
    const std::vector<int64_t> window(text.begin() + static_cast<std::ptrdiff_t>(begin),
                                      text.end());
    const int64_t n = static_cast<int64_t>(window.size());
    const nn::SequenceLayout layout = nn::SequenceLayout::dense(1, n, {0}, at::kCPU);
    nn::ForwardContext ctx{.layout = &layout};
    const at::Tensor logits = model.gpt->logits(at::tensor(window, at::kLong), ctx, *model.store);
    EXPECT_EQ(logits.size(1), 61) << "padding of the vocabulary is never drawn";
    EXPECT_EQ(token, logits[n - 1].argmax().item<int64_t>());
    text.push_back(token);
  }
}

TEST(Generate, RepeatsItselfForASeedAndStopsAtItsToken) {
  build::RankModel model = small_model();
  const auto draw = [&](uint64_t seed, int64_t stop) {
    return generate(model, {1},
                    {.max_tokens = 30, .temperature = 2, .seed = seed, .stop_token = stop}, {});
  };
  const std::vector<int64_t> text = draw(1, -1);
  EXPECT_EQ(text, draw(1, -1));
  EXPECT_NE(text, draw(2, -1));
  const std::vector<int64_t> cut = draw(1, text[10]);
  EXPECT_LE(cut.size(), 10u);
  EXPECT_TRUE(std::equal(cut.begin(), cut.end(), text.begin()));
}

TEST(Generate, RefusesTokensOutsideTheVocabularyAndBrokenWeights) {
  build::RankModel model = small_model();
  for (const int64_t token : {int64_t{61}, int64_t{-1}, std::numeric_limits<int64_t>::max()}) {
    EXPECT_THAT(error_of([&] {
                  generate(model, {3, token}, {}, {});
                }),
                HasSubstr("vocabulary of 61"));
  }
  model.gpt->params().find("final_norm.weight").value().fill_(std::nan(""));
  EXPECT_THAT(error_of([&] { generate(model, {3}, {}, {}); }), HasSubstr("not finite"));
}

} // namespace
} // namespace pentatron::generate
