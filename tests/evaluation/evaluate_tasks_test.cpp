// Scores of a tiny model on tasks are those of lm-eval, in every layout.
#include "pentatron/evaluation/evaluate_tasks.h"

#include <cmath>
#include <filesystem>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "pentatron/base/json.h"
#include "pentatron/checkpoint/model_source.h"
#include "pentatron/data/tokenizer/open.h"
#include "pentatron/evaluation/score_tokens.h"
#include "pentatron/evaluation/tokenize_requests.h"
#include "pentatron/parallelize/load_model.h"
#include "tests/support/ranks.h"

namespace pentatron::evaluation {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

const fs::path kFolder = fs::path(PENTATRON_TEST_DATA) / "evaluation";
constexpr int64_t kMaxLength = 64; // as in make.py

struct Layout {
  int tp = 1, pp = 1, dp = 1;
  int64_t batch_tokens = 2048;
};

struct Evaluator {
  Evaluator(const Layout& layout, const comm::Group& world)
      : source(checkpoint::open_model((kFolder / "model").string())),
        tokenizer(data::tokenizer::open_tokenizer({.path = kFolder / "model"})) {
    parallelize::ParallelConfig parallel;
    parallel.tensor_model_parallel_size = layout.tp;
    parallel.pipeline_model_parallel_size = layout.pp;
    const parallelize::PipelinePlan plan = parallelize::plan_pipeline(parallel, source->config());
    groups = parallelize::make_groups(world, parallel, nullptr, source->config(), plan);
    model = parallelize::load_model(*source,
                                    {.config = source->config(),
                                     .build = {.dtype = at::kDouble, .tp = groups.tp()},
                                     .max_sequence = kMaxLength,
                                     .gradients = false},
                                    groups, plan);
  }
  std::vector<TaskScores> scores(const std::vector<std::string>& names, EvalConfig config) {
    std::vector<std::string> files;
    for (const std::string& name : names) files.push_back((kFolder / (name + ".yaml")).string());
    return evaluate_tasks(model, *tokenizer,
                          text_ends(*tokenizer, kFolder / "model", source->facts().generation.eos),
                          prepare_tasks(files, config), config,
                          {.max_length = kMaxLength, .dp = groups.dp(), .progress = {}});
  }

  std::unique_ptr<checkpoint::ModelSource> source;
  std::shared_ptr<const data::Tokenizer> tokenizer;
  comm::ParallelGroups groups;
  parallelize::RankModel model;
};

const std::vector<std::string> kTasks = {"pair", "blank", "cloze", "pages", "sums"};

EvalConfig config_of(const Layout& layout) {
  EvalConfig config;
  config.bootstrap_iters = 1000;
  config.batch_tokens = layout.batch_tokens;
  return config;
}

/// transformers computes rotary angles in fp32, also of a model in fp64.
void expect_near(double got, double expected, const std::string& what) {
  EXPECT_NEAR(got, expected, 1e-6 * std::max(1.0, std::fabs(expected))) << what;
}

void expect_reference(const std::vector<TaskScores>& results) {
  const Json expected = read_json(kFolder / "expected.json");
  for (const TaskScores& task : results) {
    const Json& scores = expected["scores"][task.task];
    size_t known = 0;
    for (const Score& score : task.scores) {
      expect_near(score.value, scores.at(score.name()).get<double>(), task.task + score.name());
      ++known;
      if (!score.stderr_) continue;
      expect_near(*score.stderr_, scores.at(score.stderr_name()).get<double>(),
                  task.task + score.stderr_name());
      ++known;
    }
    EXPECT_EQ(known, scores.size()) << task.task;
    if (task.is_group) continue;
    const Json& items = expected["items"][task.task];
    ASSERT_EQ(items.size(), task.items.size()) << task.task;
    for (size_t i = 0; i < items.size(); ++i) {
      const Document& item = task.items[i];
      if (items[i].contains("text")) {
        EXPECT_EQ(item["text"].get<std::string>(), items[i]["text"].get<std::string>());
      } else if (items[i]["loglikelihood"].is_array()) {
        ASSERT_EQ(item["loglikelihood"].size(), items[i]["loglikelihood"].size());
        for (size_t j = 0; j < item["loglikelihood"].size(); ++j)
          expect_near(item["loglikelihood"][j].get<double>(),
                      items[i]["loglikelihood"][j].get<double>(),
                      fmt::format("{} {} {}", task.task, i, j));
      } else {
        expect_near(item["loglikelihood"].get<double>(), items[i]["loglikelihood"].get<double>(),
                    fmt::format("{} {}", task.task, i));
      }
    }
  }
}

TEST(EvaluateTasks, GivesTheScoresOfLmEval) {
  const Layout alone;
  const std::vector<TaskScores> scores = Evaluator(alone, {}).scores(kTasks, config_of(alone));
  EXPECT_EQ(scores.size(), 7u); // of which one is a group
  expect_reference(scores);
}

class InLayouts : public testing::TestWithParam<Layout> {};

TEST_P(InLayouts, ScoresAreThoseOfLmEval) {
  const Layout layout = GetParam();
  test::run_ranks(layout.tp * layout.pp * layout.dp, [&](const comm::Group& world) {
    expect_reference(Evaluator(layout, world).scores(kTasks, config_of(layout)));
  });
}

INSTANTIATE_TEST_SUITE_P(All, InLayouts,
                         testing::Values(Layout{.batch_tokens = 1}, Layout{.tp = 2},
                                         Layout{.pp = 2, .batch_tokens = 100},
                                         Layout{.dp = 3, .batch_tokens = 150},
                                         Layout{.tp = 2, .pp = 2, .dp = 2}),
                         [](const auto& info) {
                           const Layout& l = info.param;
                           return fmt::format("tp{}_pp{}_dp{}_{}", l.tp, l.pp, l.dp,
                                              l.batch_tokens);
                         });

TEST(EvaluateTasks, LimitAndExamplesCanBeSet) {
  EvalConfig config = config_of({});
  config.limit = 3;
  config.num_fewshot = 0;
  const std::vector<TaskScores> scores = Evaluator({}, {}).scores({"yes_no"}, config);
  EXPECT_EQ(scores[0].samples, 3);
  EXPECT_EQ(scores[0].num_fewshot, 0);
  EXPECT_EQ(scores[0].items.size(), 3u);
}

class Requests : public testing::Test {
 protected:
  std::vector<ScoredTokens> scored(const std::string& context, const std::string& continuation,
                                   Request::Kind kind = Request::Kind::kLogLikelihood) const {
    return RequestTokens(*tokenizer_, ends_, 8, "t")
        .scored({.kind = kind, .context = context, .continuation = continuation});
  }
  std::shared_ptr<const data::Tokenizer> tokenizer_ =
      data::tokenizer::open_tokenizer({.path = kFolder / "model"});
  TextEnds ends_ = text_ends(*tokenizer_, kFolder / "model");
};

TEST_F(Requests, SpacesBelongToTheContinuation) {
  EXPECT_EQ(ends_.prefix, 0); // <s>
  EXPECT_EQ(scored("the cat ", "sat")[0].tokens, scored("the cat", " sat")[0].tokens);
  EXPECT_EQ(scored("the cat ", "sat")[0].predicted, scored("the cat", " sat")[0].predicted);
  EXPECT_EQ(scored("the", " cat")[0].tokens[0], 0);
  EXPECT_EQ(scored("<s>the", " cat")[0].tokens, scored("the", " cat")[0].tokens);
}

// As lm-eval: "int" is "in" and "t", but the context stays "i".
TEST_F(Requests, ContextsStayWhereTokensMergeAcrossTheBorder) {
  std::vector<int32_t> alone, both;
  tokenizer_->encode_with_special("i", alone);
  tokenizer_->encode_with_special("int", both);
  ASSERT_EQ(both.size(), alone.size() + 1);
  ASSERT_NE(both[alone.size() - 1], alone.back());
  const ScoredTokens pair = scored("i", "nt")[0];
  EXPECT_EQ(pair.predicted, 1);
  EXPECT_EQ(pair.tokens, (std::vector<int64_t>{alone[0], alone[1], both.back()}));
}

TEST_F(Requests, LongContextsLoseTheirBeginning) {
  const ScoredTokens all = scored("xqxqxqxqxqxqxq", "zz")[0];
  EXPECT_EQ(all.tokens.size(), 9u); // eight are read
  EXPECT_EQ(all.predicted, 2);
}

TEST_F(Requests, WindowsPredictEachTokenOnce) {
  const std::vector<ScoredTokens> windows =
      scored("", "xqxqxqxqxqxqxqxqxqx", Request::Kind::kRolling);
  ASSERT_EQ(windows.size(), 3u); // of <s> and 19 letters
  EXPECT_EQ(windows[0].predicted, 8);
  EXPECT_EQ(windows[2].predicted, 4);
  EXPECT_EQ(windows[2].tokens.size(), 9u);
}

TEST_F(Requests, WhatCannotBeScoredIsTold) {
  EXPECT_THAT(test::error_of([&] { scored("a", "xqxqxqxqxq"); }), HasSubstr("eval.max_length=8"));
  EXPECT_THAT(test::error_of([&] { scored("a", ""); }), HasSubstr("adds no token"));
}

} // namespace
} // namespace pentatron::evaluation
