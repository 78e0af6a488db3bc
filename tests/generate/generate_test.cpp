// Drawing tokens: against counted frequencies, and against the arg max of a full forward pass.
#include "pentatron/generate/generate.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "pentatron/base/json.h"
#include "pentatron/base/philox.h"
#include "pentatron/checkpoint/model_source.h"
#include "pentatron/data/tokenizer/hugging_face.h"
#include "pentatron/generate/text_writer.h"
#include "pentatron/parallelize/load_model.h"
#include "tests/support/model_pass.h"
#include "tests/support/ranks.h"

namespace pentatron::generate {
namespace {

using test::error_of;
using ::testing::HasSubstr;

TEST(PromptTokens, OfNoTextAreTheBeginToken) {
  const auto tokenizer = data::tokenizer::make_hugging_face(
      parse_json(R"({"model": {"type": "BPE", "vocab": {"a": 0, "<s>": 1}, "merges": []},
                     "added_tokens": [{"id": 1, "content": "<s>", "special": true}]})",
                 "a tokenizer"),
      {.eod = {.required = "a", .likely = {}}});
  EXPECT_EQ(prompt_tokens(*tokenizer, "", "<s>"), std::vector<int64_t>{1});
  EXPECT_EQ(prompt_tokens(*tokenizer, ""), std::vector<int64_t>{0}) << "the end of a document";
  EXPECT_EQ(prompt_tokens(*tokenizer, "a", "<s>"), std::vector<int64_t>{0})
      << "as the tokenizer says";
  EXPECT_EQ(prompt_tokens(*tokenizer, "", "<t>"), std::vector<int64_t>{0});
}

/// Shares of 20000 draws.
std::vector<double> frequencies(const std::vector<float>& logits, const Sampling& sampling,
                                const std::vector<int64_t>& seen = {}) {
  const Stream stream(7, "test");
  std::vector<double> share(logits.size());
  constexpr int kDraws = 20000;
  for (uint64_t i = 0; i < kDraws; ++i) {
    const Drawn drawn = sample_token(logits, sampling, seen, stream.uniform(i));
    share[static_cast<size_t>(drawn.token)] += 1.0 / kDraws;
  }
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
const std::vector<float> kLogits = {std::log(0.1F), std::log(0.4F), std::log(0.2F), std::log(0.3F)};

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
  // Of what top-k has left.
  expect_shares(frequencies(kLogits, {.temperature = 1, .top_k = 2, .top_p = 0.5}), {0, 1, 0, 0});
}

TEST(SampleToken, MinPKeepsWhatIsNotFarBelowTheLikeliest) {
  expect_shares(frequencies(kLogits, {.temperature = 1, .top_p = 1, .min_p = 0.6}),
                {0, 4.0 / 7, 0, 3.0 / 7});
  expect_shares(frequencies(kLogits, {.temperature = 1, .top_p = 1, .min_p = 1}), {0, 1, 0, 0});
  // It looks at the tempered probabilities, and top-p at those before it.
  expect_shares(frequencies(kLogits, {.temperature = 0.5, .top_p = 1, .min_p = 0.6}), {0, 1, 0, 0});
  expect_shares(frequencies(kLogits, {.temperature = 1, .top_p = 0.75, .min_p = 0.6}),
                {0, 4.0 / 7, 0, 3.0 / 7});
}

TEST(SampleToken, TheRepetitionPenaltyCountsATokenOnce) {
  // ln 0.4 is negative, so it is multiplied: 0.4^2 = 0.16.
  const double z = 0.1 + 0.16 + 0.2 + 0.3;
  const Sampling sampling{.temperature = 1, .top_p = 1, .repetition_penalty = 2};
  expect_shares(frequencies(kLogits, sampling, {1, 1, 7}), {0.1 / z, 0.16 / z, 0.2 / z, 0.3 / z});
  EXPECT_EQ(sample_token(std::vector<float>{3, 4, 1}, {.temperature = 0, .repetition_penalty = 2},
                         std::vector<int64_t>{1}, 0)
                .token,
            0);
}

TEST(SampleToken, KnowsTheProbabilityUnderTheModel) {
  const Sampling sampling{.temperature = 0.1, .top_k = 1, .repetition_penalty = 1.5};
  const Drawn drawn = sample_token(kLogits, sampling, std::vector<int64_t>{1}, 0.5);
  EXPECT_EQ(drawn.token, 3);
  EXPECT_NEAR(drawn.logprob, std::log(0.3), 1e-6);
}

TEST(SampleToken, ManyCandidatesAreSortedInParts) {
  const Stream stream(3, "logits");
  std::vector<float> logits(20000);
  for (size_t i = 0; i < logits.size(); ++i) logits[i] = static_cast<float>(stream.normal(i));
  for (const double top_p : {0.5, 0.99, 0.9999}) {
    // The definition: sort all, keep the smallest prefix that reaches top_p, walk to u.
    std::vector<int64_t> order(logits.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int64_t>(i);
    std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
      return logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)];
    });
    double total = 0, mass = 0;
    for (const float x : logits) total += std::exp(static_cast<double>(x));
    size_t kept = 0;
    while (mass < top_p * total)
      mass += std::exp(static_cast<double>(logits[static_cast<size_t>(order[kept++])]));
    for (const double u : {0.0, 0.3, 0.77, 0.9999}) {
      double target = u * mass;
      size_t i = 0;
      while (i + 1 < kept) {
        target -= std::exp(static_cast<double>(logits[static_cast<size_t>(order[i])]));
        if (target < 0) break;
        ++i;
      }
      EXPECT_EQ(sample_token(logits, {.temperature = 1, .top_p = top_p}, {}, u).token, order[i])
          << top_p << " " << u;
    }
  }
}

TEST(SampleToken, TemperatureZeroIsTheLikeliestAndTheLowestOfEquals) {
  const auto greedy = [](const std::vector<float>& logits, int64_t num_tokens) {
    return sample_token(logits, {.temperature = 0, .num_tokens = num_tokens}, {}, 0.99).token;
  };
  EXPECT_EQ(greedy({1, 5, 5, 2}, 0), 1);
  EXPECT_EQ(greedy({1, 5, 5, 9}, 3), 1);
}

TEST(SampleToken, TheEndsOfTheIntervalAreTokens) {
  for (const Sampling& sampling :
       {Sampling{.temperature = 1, .top_p = 1}, Sampling{.temperature = 1, .top_p = 0.9999}}) {
    const bool sorted = sampling.top_p < 1;
    EXPECT_EQ(sample_token(kLogits, sampling, {}, 0).token, sorted ? 1 : 0);
    EXPECT_EQ(sample_token(kLogits, sampling, {}, std::nextafter(1.0, 0.0)).token, sorted ? 0 : 3);
  }
}

TEST(SampleToken, RefusesOptionsOutOfRangeAndOutputThatIsNotFinite) {
  const double nan = std::nan("");
  for (const auto& [sampling, text] :
       {std::pair<Sampling, const char*>{{.temperature = -1}, "--temperature -1"},
        {{.temperature = nan}, "--temperature nan"},
        {{.top_k = -2}, "--top-k -2"},
        {{.top_p = 0}, "--top-p 0"},
        {{.top_p = 1.5}, "--top-p 1.5"},
        {{.top_p = nan}, "--top-p nan"},
        {{.min_p = -0.1}, "--min-p -0.1"},
        {{.min_p = 2}, "--min-p 2"},
        {{.repetition_penalty = 0}, "--repetition-penalty 0"},
        {{.repetition_penalty = nan}, "--repetition-penalty nan"}}) {
    EXPECT_THAT(error_of([&] { sample_token(kLogits, sampling, {}, 0.5); }), HasSubstr(text));
  }
  EXPECT_THAT(error_of([] { check({.max_new_tokens = -3}); }), HasSubstr("--max-new-tokens -3"));
  for (const float bad : {std::nanf(""), INFINITY, -INFINITY})
    EXPECT_THAT(error_of([&] {
                  sample_token(std::vector<float>{1, bad, 2}, {}, {}, 0.5);
                }),
                HasSubstr("not finite"));
}

constexpr int64_t kContext = 24;

models::ModelConfig small_config() {
  models::ModelConfig config;
  config.num_layers = 3;
  config.hidden_size = 32;
  config.num_attention_heads = 4;
  config.num_query_groups = 2;
  config.vocab_size = 61;
  config.max_position_embeddings = kContext;
  config.init_method_std = 0.3;
  return config;
}

parallelize::RankModel model_of(const models::ModelConfig& config,
                                at::ScalarType dtype = at::kDouble) {
  parallelize::RankModel model = parallelize::make_model(
      {.config = config, .build = {.dtype = dtype}, .max_sequence = kContext, .gradients = false},
      {});
  model.model->initialize(3);
  return model;
}

using Prompts = std::vector<std::vector<int64_t>>;

/// What a full forward pass over the window says at every step, without a cache.
std::vector<int64_t> argmax_of_full_passes(parallelize::RankModel& model,
                                           std::vector<int64_t> window, int64_t count) {
  std::vector<int64_t> drawn;
  for (int64_t i = 0; i < count; ++i) {
    if (static_cast<int64_t>(window.size()) > kContext)
      window.erase(window.begin(), window.end() - kContext / 2);
    const auto n = static_cast<int64_t>(window.size());
    const at::Tensor logits =
        test::logits(*model.model, *model.store, at::tensor(window, at::kLong),
                     nn::SequenceLayout::dense(1, n, {0}, at::kCPU));
    EXPECT_EQ(logits.size(1), 61) << "padding of the vocabulary is never drawn";
    drawn.push_back(logits[n - 1].argmax().item<int64_t>());
    window.push_back(drawn.back());
  }
  return drawn;
}

void latent_attention(models::ModelConfig& c) {
  c.num_query_groups.reset();
  c.multi_latent_attention = true;
  c.q_lora_rank = 20;
  c.kv_lora_rank = 12;
  c.qk_head_dim = 6;
  c.qk_pos_emb_head_dim = 4;
  c.v_head_dim = 10;
}

struct Variant {
  const char* name;
  void (*change)(models::ModelConfig&);
};
class GenerateModels : public ::testing::TestWithParam<Variant> {};

TEST_P(GenerateModels, IsTheArgMaxOfAFullForwardPassStepByStep) {
  models::ModelConfig config = small_config();
  GetParam().change(config);
  parallelize::RankModel model = model_of(config);
  const Prompts prompts = {{5, 17}, {1}, {60, 2, 3, 4, 5, 6, 7, 8, 9}};
  Prompts seen(prompts.size());
  const std::vector<Text> texts =
      generate(model, prompts, {.sampling = {.temperature = 0}, .max_new_tokens = 50},
               [&](size_t text, const Drawn& drawn) {
                 seen[text].push_back(drawn.token);
                 return true;
               });
  for (size_t i = 0; i < prompts.size(); ++i) {
    EXPECT_EQ(texts[i].tokens, argmax_of_full_passes(model, prompts[i], 50)) << i;
    EXPECT_EQ(seen[i], texts[i].tokens);
    EXPECT_EQ(texts[i].logprobs.size(), 50u);
    EXPECT_EQ(texts[i].finish, Finish::kLength);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Configs, GenerateModels,
    ::testing::Values(Variant{"rotary", [](models::ModelConfig&) {}},
                      Variant{"window",
                              [](models::ModelConfig& c) {
                                c.window_size = 5;
                                c.full_attention_layers = {1};
                              }},
                      Variant{"learned_positions",
                              [](models::ModelConfig& c) {
                                c.position_embedding_type =
                                    models::PositionEmbedding::kLearnedAbsolute;
                                c.num_query_groups = 4;
                                c.add_qkv_bias = c.add_mlp_bias = c.add_attention_proj_bias = true;
                              }},
                      Variant{"sinks_and_head_norms",
                              [](models::ModelConfig& c) {
                                c.softmax_type = models::SoftmaxType::kOffByOne;
                                c.qk_layernorm = true;
                                c.num_query_groups = 1;
                              }},
                      Variant{"latents", latent_attention},
                      Variant{"latents_with_window_and_sinks",
                              [](models::ModelConfig& c) {
                                latent_attention(c);
                                c.q_lora_rank.reset();
                                c.rotary_interleaved = true;
                                c.softmax_type = models::SoftmaxType::kOffByOne;
                                c.window_size = 5;
                                c.full_attention_layers = {1};
                                c.attn_logit_softcapping = 3;
                              }}),
    [](const auto& info) { return info.param.name; });

TEST(Generate, ATextIsTheSameAloneAndAmongOthers) {
  parallelize::RankModel model = model_of(small_config(), at::kFloat);
  const Options options{.max_new_tokens = 30, .seed = 5};
  const Prompts prompts = {{5, 17}, {1, 2, 3, 4, 5, 6, 7}};
  EXPECT_EQ(generate(model, prompts, options)[0].tokens,
            generate(model, {prompts[0]}, options)[0].tokens);
}

TEST(Generate, RepeatsItselfForASeedAndStopsWhereItIsTold) {
  parallelize::RankModel model = model_of(small_config());
  const auto draw = [&](uint64_t seed, std::vector<int64_t> stops, const OnToken& on_token = {}) {
    return generate(model, {{1}},
                    {.sampling = {.temperature = 2},
                     .max_new_tokens = 20,
                     .seed = seed,
                     .stop_tokens = std::move(stops)},
                    on_token)[0];
  };
  const Text text = draw(1, {});
  EXPECT_EQ(text.tokens, draw(1, {}).tokens);
  EXPECT_NE(text.tokens, draw(2, {}).tokens);
  const Text cut = draw(1, {text.tokens[10], -1});
  EXPECT_LE(cut.tokens.size(), 11u);
  EXPECT_EQ(cut.tokens.back(), text.tokens[10]);
  EXPECT_EQ(cut.finish, Finish::kStopToken);
  EXPECT_TRUE(std::equal(cut.tokens.begin(), cut.tokens.end(), text.tokens.begin()));
  int64_t count = 0;
  const Text ended = draw(1, {}, [&](size_t, const Drawn&) { return ++count < 4; });
  EXPECT_EQ(ended.tokens.size(), 4u);
  EXPECT_EQ(ended.finish, Finish::kCaller);
}

TEST(Generate, RefusesTokensOutsideTheVocabularyAndBrokenWeights) {
  parallelize::RankModel model = model_of(small_config());
  for (const int64_t token : {int64_t{61}, int64_t{-1}, std::numeric_limits<int64_t>::max()})
    EXPECT_THAT(error_of([&] {
                  generate(model, {{3, token}}, {});
                }),
                HasSubstr("vocabulary of 61"));
  model.model->params().find("final_norm.weight").value().fill_(std::nan(""));
  EXPECT_THAT(error_of([&] { generate(model, {{3}}, {}); }), HasSubstr("not finite"));
}

TEST(Session, ReadsOnlyWhatIsNew) {
  parallelize::RankModel model = model_of(small_config());
  const Options options{.sampling = {.temperature = 0}, .max_new_tokens = 4};
  Session session(model, 1);
  std::vector<int64_t> text = {7, 8, 9};
  const Text first = continue_text(session, text, options);
  EXPECT_EQ(session.tokens(0).size(), 6u); // the last token has not been read
  text.insert(text.end(), first.tokens.begin(), first.tokens.end());
  text.insert(text.end(), {30, 31});
  EXPECT_EQ(continue_text(session, text, options).tokens,
            generate(model, {text}, options)[0].tokens);
  // Another turn of the talk: what differs is forgotten.
  text[4] = (text[4] + 1) % 61;
  EXPECT_EQ(continue_text(session, text, options).tokens,
            generate(model, {text}, options)[0].tokens);
  EXPECT_EQ(continue_text(session, {7}, options).tokens, generate(model, {{7}}, options)[0].tokens);
}

class Fp8Cache : public ::testing::TestWithParam<Variant> {};

/// In fp64, so that only the codes are rounded.
TEST_P(Fp8Cache, TakesFewerBytesAndReadsTheSameInAnyPasses) {
  models::ModelConfig config = small_config();
  GetParam().change(config);
  parallelize::RankModel model = model_of(config);
  const std::vector<int64_t> text = {7, 8, 9, 10, 60, 3, 2, 1, 0, 5};
  Session exact(model, 1), whole(model, 1, true), parts(model, 1, true);
  const at::Tensor without = exact.read({{.tokens = text}});
  const at::Tensor once = whole.read({{.tokens = text}});
  at::Tensor last;
  for (const auto& [begin, count] : {std::pair<size_t, size_t>{0, 3}, {3, 1}, {4, 5}, {9, 1}})
    last = parts.read({{.tokens = std::span(text).subspan(begin, count)}});
  EXPECT_LT((once - last).abs().max().item<double>(), 1e-10);
  const double change = (once - without).abs().max().item<double>(),
               size = without.abs().max().item<double>();
  EXPECT_GT(change, 0);
  EXPECT_LT(change, 0.1 * size);
  const int64_t numbers = exact.bytes() / 8;
  EXPECT_LT(whole.bytes(), 2 * numbers);
  EXPECT_GT(whole.bytes(), numbers); // and the scales
}

INSTANTIATE_TEST_SUITE_P(Configs, Fp8Cache,
                         ::testing::Values(Variant{"rotary", [](models::ModelConfig&) {}},
                                           Variant{"latents", latent_attention}),
                         [](const auto& info) { return info.param.name; });

struct Layout {
  int tp = 1, pp = 1;
  bool sequence = false, overlap = false;
  const char* stages = "";
};
class GenerateLayouts : public ::testing::TestWithParam<Layout> {};

TEST_P(GenerateLayouts, WriteWhatOneRankWrites) {
  const Layout& layout = GetParam();
  const Prompts prompts = {{5, 17}, {1}, {60, 2, 3, 4, 5, 6, 7, 8, 9}};
  for (const bool tied : {false, true}) {
    const Options options{
        .sampling = {.temperature = 1.5}, .max_new_tokens = 40, .seed = 9, .fp8_cache = tied};
    models::ModelConfig config = small_config();
    config.untie_embeddings_and_output_weights = !tied;
    parallelize::RankModel one = model_of(config);
    const std::vector<Text> expected = generate(one, prompts, options);
    test::run_ranks(layout.tp * layout.pp, [&](const comm::Group& world) {
      parallelize::ParallelConfig parallel;
      parallel.tensor_model_parallel_size = layout.tp;
      parallel.pipeline_model_parallel_size = layout.pp;
      parallel.pipeline_model_parallel_layout = layout.stages;
      if (*layout.stages != 0)
        parallel.pipeline_schedule = parallelize::PipelineSchedule::kInterleaved;
      const parallelize::PipelinePlan plan = parallelize::plan_pipeline(parallel, config);
      const comm::ParallelGroups groups =
          parallelize::make_groups(world, parallel, nullptr, config, plan);
      parallelize::RankModel model = parallelize::make_model(
          {.config = config,
           .build = {.dtype = at::kDouble, .tp = {groups.tp(), layout.sequence, layout.overlap}},
           .max_sequence = kContext,
           .gradients = false},
          groups, plan);
      model.model->initialize(3);
      const std::vector<Text> texts = generate(model, prompts, options);
      for (size_t i = 0; i < prompts.size(); ++i) {
        EXPECT_EQ(texts[i].tokens, expected[i].tokens) << "rank " << world.rank();
        for (size_t t = 0; t < texts[i].logprobs.size(); ++t)
          EXPECT_NEAR(texts[i].logprobs[t], expected[i].logprobs[t], 1e-5);
      }
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, GenerateLayouts,
                         ::testing::Values(Layout{.tp = 2}, Layout{.tp = 4},
                                           Layout{.tp = 2, .sequence = true},
                                           Layout{.tp = 2, .sequence = true, .overlap = true},
                                           Layout{.pp = 2}, Layout{.pp = 3},
                                           Layout{.tp = 2, .pp = 2},
                                           Layout{.tp = 2, .pp = 2, .sequence = true},
                                           Layout{.pp = 2, .stages = "Et|t|t|L"}),
                         [](const auto& info) {
                           return fmt::format("tp{}_pp{}{}{}{}", info.param.tp, info.param.pp,
                                              info.param.sequence ? "_sequence" : "",
                                              info.param.overlap ? "_overlap" : "",
                                              *info.param.stages != 0 ? "_virtual" : "");
                         });

class GenerateFamilies : public ::testing::TestWithParam<const char*> {};

TEST_P(GenerateFamilies, WriteWhatTransformersWritesOnAnyRanks) {
  const std::filesystem::path folder =
      std::filesystem::path(PENTATRON_TEST_DATA) / "hf_tiny" / GetParam();
  const Json expected = read_json(folder / "texts.json");
  Prompts prompts, tokens;
  for (const Json& text : expected.at("texts")) {
    prompts.push_back(text.at("prompt").get<std::vector<int64_t>>());
    tokens.push_back(text.at("tokens").get<std::vector<int64_t>>());
  }
  const models::ModelConfig config = checkpoint::open_model(folder.string())->config();
  struct Case {
    int tp, pp;
    bool sequence;
    at::ScalarType dtype;
    int ep = 1;
  };
  for (const Case& c : {Case{1, 1, false, at::kDouble}, Case{2, 1, true, at::kDouble},
                        Case{1, 2, false, at::kDouble}, Case{2, 2, true, at::kDouble},
                        Case{1, 1, false, at::kFloat}, Case{1, 1, false, at::kDouble, 2},
                        Case{2, 2, false, at::kDouble, 2}}) {
    if (c.ep > 1 && config.num_moe_experts.value_or(1) % c.ep != 0) continue;
    test::run_ranks(c.tp * c.pp * c.ep, [&](const comm::Group& world) {
      const auto source = checkpoint::open_model(folder.string());
      parallelize::ParallelConfig parallel;
      parallel.expert_model_parallel_size = c.ep;
      parallel.tensor_model_parallel_size = c.tp;
      parallel.pipeline_model_parallel_size = c.pp;
      const parallelize::PipelinePlan plan = parallelize::plan_pipeline(parallel, source->config());
      const comm::ParallelGroups groups =
          parallelize::make_groups(world, parallel, nullptr, source->config(), plan);
      parallelize::RankModel model = parallelize::load_model(
          *source,
          {.config = source->config(),
           .build = {.dtype = c.dtype, .tp = {groups.tp(), c.sequence, false}},
           .max_sequence = config.longest_sequence().value_or(1),
           .gradients = false},
          groups, plan);
      const std::vector<Text> texts =
          generate(model, prompts,
                   {.sampling = {.temperature = 0},
                    .max_new_tokens = 80,
                    .stop_tokens = {expected.at("stop").get<int64_t>()}});
      for (size_t i = 0; i < prompts.size(); ++i)
        EXPECT_EQ(texts[i].tokens, tokens[i])
            << "tp " << c.tp << ", pp " << c.pp << ", ep " << c.ep << ", " << i;
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Folders, GenerateFamilies,
                         ::testing::Values("t5_generation", "deepseek_v3", "deepseek_v3_yarn",
                                           "gpt_oss", "mixtral"),
                         [](const auto& info) { return std::string(info.param); });

} // namespace
} // namespace pentatron::generate
