// Texts that join and leave at every pass are those that generate() writes alone.
#include "pentatron/serve/scheduler.h"

#include "pentatron/serve/serve.h"

#include <cmath>

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/serve/tiny_server.h"
#include "tests/support/model_pass.h"
#include "tests/support/ranks.h"

namespace pentatron::serve {
namespace {

using generate::Finish;
using test::RecordingSink;
using test::some_tokens;

struct Submission {
  TextJob job;
  std::shared_ptr<RecordingSink> sink = std::make_shared<RecordingSink>();
};

class Scheduling : public ::testing::Test {
 protected:
  struct Sizes {
    int64_t texts = 4, pages = 100, pass_tokens = 50, queue = 100;
    int64_t scored_rows = 256;
  };
  void start(const Sizes& sizes) {
    session = std::make_unique<RankedSession>(
        model, generate::BatchSession::Options{.texts = sizes.texts, .pages = sizes.pages},
        comm::Group());
    scheduler = std::make_unique<Scheduler>(*session,
                                            Scheduler::Options{.texts = sizes.texts,
                                                               .pass_tokens = sizes.pass_tokens,
                                                               .queue = sizes.queue,
                                                               .scored_rows = sizes.scored_rows},
                                            metrics);
  }
  static Submission make(std::vector<int64_t> prompt, int64_t new_tokens, double temperature = 0) {
    Submission run;
    run.job = {.prompt = std::move(prompt),
               .sampling = {.temperature = temperature},
               .seed = 11,
               .number = 0,
               .max_new_tokens = new_tokens,
               .sink = run.sink};
    return run;
  }
  Scheduler::Submitted submit(const Submission& run) {
    return scheduler->submit({run.job}, nullptr);
  }
  void finish() {
    while (scheduler->step()) {
    }
  }
  std::vector<int64_t> alone(const TextJob& job) {
    generate::Options options{.sampling = job.sampling,
                              .max_new_tokens = job.max_new_tokens,
                              .seed = job.seed,
                              .numbers = {job.number},
                              .stop_tokens = job.stop_tokens};
    return generate::generate(model, {job.prompt}, options)[0].tokens;
  }
  void expect_as_alone(const Submission& run) {
    EXPECT_TRUE(run.sink->finished) << run.sink->failure;
    EXPECT_EQ(run.sink->ends, 1);
    EXPECT_EQ(run.sink->tokens, alone(run.job));
  }

  parallelize::RankModel model = test::tiny_served_model(test::tiny_served_config());
  Metrics metrics;
  std::unique_ptr<RankedSession> session;
  std::unique_ptr<Scheduler> scheduler;
};

TEST_F(Scheduling, TextsThatJoinAndLeaveAreThoseWrittenAlone) {
  start({.texts = 3});
  std::vector<Submission> runs;
  for (int64_t i = 0; i < 9; ++i) {
    runs.push_back(make(some_tokens(1 + 13 * i, i), 5 + 7 * (i % 3), i % 2 == 0 ? 0 : 0.9));
    runs.back().job.number = static_cast<uint64_t>(i);
    EXPECT_EQ(submit(runs.back()), Scheduler::Submitted::kTaken);
    for (int64_t pass = 0; pass < i % 4; ++pass) scheduler->step();
  }
  finish();
  for (const Submission& run : runs) expect_as_alone(run);
  EXPECT_EQ(metrics.finished, 9);
  EXPECT_EQ(metrics.running, 0);
  EXPECT_EQ(metrics.waiting, 0);
  EXPECT_EQ(metrics.pages_used, 0) << "closed texts use nothing";
  EXPECT_GT(metrics.pages_held, 0);
}

TEST_F(Scheduling, ALongPromptIsReadInPartsWhileOthersAreWritten) {
  start({.texts = 2, .pass_tokens = 20});
  const Submission writing = make(some_tokens(5, 1), 40), reading = make(some_tokens(300, 2), 3);
  submit(writing);
  scheduler->step();
  EXPECT_EQ(writing.sink->tokens.size(), 1u);
  submit(reading);
  for (size_t pass = 0; pass < 10; ++pass) {
    scheduler->step();
    EXPECT_EQ(writing.sink->tokens.size(), pass + 2) << "one token each pass";
    EXPECT_TRUE(reading.sink->tokens.empty());
  }
  finish();
  expect_as_alone(writing);
  expect_as_alone(reading);
}

TEST_F(Scheduling, ABeginningThatWasReadBeforeIsTakenOver) {
  start({});
  const std::vector<int64_t> prompt = some_tokens(200, 4);
  const Submission first = make(prompt, 4);
  submit(first);
  finish();
  EXPECT_EQ(first.sink->reused, 0);
  Submission same = make(prompt, 4), longer = make(prompt, 6), other = make(some_tokens(200, 5), 3);
  longer.job.prompt.push_back(9);
  other.job.prompt[0] = prompt[0];
  for (const Submission& run : {same, longer, other}) submit(run);
  finish();
  EXPECT_EQ(same.sink->reused, 192);
  EXPECT_EQ(longer.sink->reused, 192);
  EXPECT_EQ(other.sink->reused, 0);
  for (const Submission& run : {first, same, longer, other}) expect_as_alone(run);
  // A talk goes on behind the answer too.
  Submission next = make(prompt, 5);
  for (const int64_t token : longer.sink->tokens) next.job.prompt.push_back(token);
  submit(next);
  finish();
  EXPECT_EQ(next.sink->reused, 192);
  expect_as_alone(next);
}

TEST_F(Scheduling, AnotherVariantOfTheWeightsSharesNothing) {
  start({});
  Submission base = make(some_tokens(100, 4), 2), adapted = base;
  adapted.sink = std::make_shared<RecordingSink>();
  adapted.job.sink = adapted.sink;
  adapted.job.variant = 1;
  submit(base);
  finish();
  EXPECT_EQ(session->session().pages_held(), 1);
  // Variants of weights come with adapters; the tree is what keeps them apart.
  generate::PrefixTree tree(2);
  generate::PrefixTree::Path path;
  nn::KvCache::Block block;
  const std::vector<int64_t> tokens = {1, 2, 3};
  tree.extend(0, path, std::span(tokens).first(2), block);
  EXPECT_EQ(tree.find(0, tokens, 1).size(), 1u);
  EXPECT_TRUE(tree.find(1, tokens, 1).empty());
}

TEST_F(Scheduling, ChoicesOfAPromptReadItOnce) {
  start({.texts = 4});
  std::vector<Submission> runs;
  std::vector<TextJob> jobs;
  for (uint64_t i = 0; i < 3; ++i) {
    runs.push_back(make(some_tokens(150, 6), 8, 1.0));
    runs.back().job.number = i;
    runs.back().job.after_first = true;
    jobs.push_back(runs.back().job);
  }
  scheduler->submit(jobs, nullptr);
  finish();
  EXPECT_EQ(runs[0].sink->reused, 0);
  EXPECT_EQ(runs[1].sink->reused, 128);
  EXPECT_EQ(runs[2].sink->reused, 128);
  for (const Submission& run : runs) expect_as_alone(run);
  EXPECT_NE(runs[0].sink->tokens, runs[1].sink->tokens);
}

TEST_F(Scheduling, WithoutRoomTheYoungestWaitsAndItsTextStaysTheSame) {
  // 9 pages are one text of the context and one page.
  start({.texts = 4, .pages = 9, .pass_tokens = 128});
  std::vector<Submission> runs;
  for (int64_t i = 0; i < 4; ++i) {
    runs.push_back(make(some_tokens(60, i), 140, 0.9));
    runs.back().job.number = static_cast<uint64_t>(i);
    submit(runs.back());
  }
  while (scheduler->step()) EXPECT_LE(session->session().pages_held(), 9);
  EXPECT_GT(metrics.preempted, 0);
  for (const Submission& run : runs) expect_as_alone(run);
}

TEST_F(Scheduling, OldPagesMakeRoomForNewOnes) {
  start({.texts = 1, .pages = 9, .pass_tokens = 128});
  for (int64_t i = 0; i < 5; ++i) {
    const Submission run = make(some_tokens(250, i), 3);
    submit(run);
    while (scheduler->step()) EXPECT_LE(session->session().pages_held(), 9);
    expect_as_alone(run);
  }
  const Submission last = make(some_tokens(250, 4), 3), first = make(some_tokens(250, 0), 3);
  submit(last);
  finish();
  EXPECT_EQ(last.sink->reused, 192);
  submit(first);
  finish();
  EXPECT_EQ(first.sink->reused, 0) << "the least recently used went first";
}

TEST_F(Scheduling, ACancelledTextLeavesWhereverItIs) {
  start({.texts = 1});
  const auto gone = std::make_shared<std::atomic<bool>>(false);
  const Submission running = make(some_tokens(10, 1), 400), waiting = make(some_tokens(10, 2), 400),
                   staying = make(some_tokens(10, 3), 6);
  scheduler->submit({running.job}, gone);
  scheduler->submit({waiting.job}, gone);
  submit(staying);
  for (int i = 0; i < 5; ++i) scheduler->step();
  EXPECT_FALSE(running.sink->tokens.empty());
  *gone = true;
  finish();
  EXPECT_TRUE(running.sink->cancelled);
  EXPECT_TRUE(waiting.sink->cancelled);
  EXPECT_EQ(running.sink->ends + waiting.sink->ends, 2);
  expect_as_alone(staying);
  EXPECT_EQ(metrics.cancelled, 2);
}

TEST_F(Scheduling, TheQueueTakesAllOfARequestOrNothing) {
  start({.texts = 1, .queue = 3});
  const Submission one = make({1, 2}, 2), two = make({3}, 2), three = make({4}, 2),
                   four = make({5}, 2);
  EXPECT_EQ(scheduler->submit({one.job, two.job}, nullptr), Scheduler::Submitted::kTaken);
  EXPECT_EQ(scheduler->submit({three.job, four.job}, nullptr), Scheduler::Submitted::kFull);
  EXPECT_EQ(submit(three), Scheduler::Submitted::kTaken);
  finish();
  EXPECT_EQ(four.sink->ends, 0);
  EXPECT_EQ(submit(four), Scheduler::Submitted::kTaken);
  finish();
  for (const Submission& run : {one, two, three, four}) expect_as_alone(run);
}

TEST_F(Scheduling, TextsEndAtStopTokensAndWhenTheirReaderHasEnough) {
  start({});
  Submission stopped = make(some_tokens(20, 8), 50), enough = make(some_tokens(20, 9), 50);
  stopped.job.stop_tokens = {alone(stopped.job)[7]};
  enough.sink->enough = 4;
  submit(stopped);
  submit(enough);
  finish();
  EXPECT_EQ(stopped.sink->why, Finish::kStopToken);
  EXPECT_EQ(stopped.sink->tokens, alone(stopped.job));
  EXPECT_EQ(enough.sink->why, Finish::kCaller);
  EXPECT_EQ(enough.sink->tokens.size(), 4u);
}

TEST_F(Scheduling, ScoresAreThoseOfAFullForwardPass) {
  start({.pass_tokens = 20, .scored_rows = 7});
  Submission run = make(some_tokens(50, 3), 3);
  run.job.scores = run.job.prompt_scores = true;
  run.job.top = 2;
  submit(run);
  const Submission other = make(some_tokens(30, 4), 30);
  submit(other);
  finish();
  expect_as_alone(run);
  expect_as_alone(other);
  std::vector<int64_t> all = run.job.prompt;
  all.insert(all.end(), run.sink->tokens.begin(), run.sink->tokens.end());
  const auto n = static_cast<int64_t>(all.size());
  const at::Tensor logprobs = test::logits(*model.model, *model.store, at::tensor(all, at::kLong),
                                           nn::SequenceLayout::dense(1, n, {0}, at::kCPU))
                                  .log_softmax(1);
  std::vector<ScoredToken> scores = run.sink->prompt;
  ASSERT_EQ(scores.size(), 49u);
  scores.insert(scores.end(), run.sink->scores.begin(), run.sink->scores.end());
  for (int64_t i = 0; i + 1 < n; ++i) {
    const ScoredToken& scored = scores[static_cast<size_t>(i)];
    const int64_t token = all[static_cast<size_t>(i + 1)];
    EXPECT_EQ(scored.token, token);
    EXPECT_NEAR(scored.logprob, logprobs[i][token].item<double>(), 1e-5);
    ASSERT_EQ(scored.top.size(), 2u);
    const auto [values, places] = logprobs[i].topk(2);
    EXPECT_EQ(scored.top[0].token, places[0].item<int64_t>());
    EXPECT_NEAR(scored.top[1].logprob, values[1].item<double>(), 1e-5);
  }
}

TEST_F(Scheduling, APromptWithoutNewTokensIsScored) {
  start({});
  Submission run = make(some_tokens(9, 3), 0);
  run.job.scores = run.job.prompt_scores = true;
  submit(run);
  finish();
  EXPECT_EQ(run.sink->prompt.size(), 8u);
  EXPECT_TRUE(run.sink->tokens.empty());
  EXPECT_TRUE(run.sink->finished);
}

TEST_F(Scheduling, StoppingFinishesWhatRunsAndRefusesMore) {
  start({});
  const Submission run = make(some_tokens(9, 3), 20);
  submit(run);
  int asked = 0;
  scheduler->run([&] { return ++asked > 3; });
  expect_as_alone(run);
  EXPECT_EQ(submit(make({1}, 1)), Scheduler::Submitted::kStopping);
}

TEST(CacheTokens, FollowTheTextsTheMemoryAndTheContext) {
  constexpr int64_t kMuch = int64_t{1} << 40;
  EXPECT_EQ(choose_cache_tokens(1000, kMuch, 8192, 16), 2048 * 16);
  EXPECT_EQ(choose_cache_tokens(1000, kMuch, 256, 16), 256 * 16);
  EXPECT_EQ(choose_cache_tokens(1000, 4 * 64 * 1000 * 100, 2048, 16), 64 * 100);
  EXPECT_EQ(choose_cache_tokens(1000, 0, 2000, 16), 2048 + 64) << "one text at least";
}

TEST(Cache, ThatDoesNotFitIsRefused) {
  EXPECT_NO_THROW(check_cache_tokens(1000, 1000, 1'000'000, 64));
  for (const int64_t tokens : {int64_t{1001}, int64_t{1} << 62}) {
    const std::string message =
        test::error_of([&] { check_cache_tokens(tokens, 1000, 1'000'000, 64); });
    EXPECT_NE(message.find(fmt::format("--cache-tokens {} takes ", tokens)), std::string::npos);
    EXPECT_NE(message.find("try: --cache-tokens 64"), std::string::npos) << message;
  }
}

TEST(SchedulingOnRanks, IsTheSameInEveryLayout) {
  const models::ModelConfig config = test::tiny_served_config();
  parallelize::RankModel whole = test::tiny_served_model(config);
  const std::vector<int64_t> prompt = some_tokens(150, 2);
  const std::vector<int64_t> expected =
      generate::generate(whole, {prompt}, {.sampling = {.temperature = 0}, .max_new_tokens = 9})[0]
          .tokens;
  for (const auto& [tp, pp] : {std::pair{2, 1}, std::pair{1, 2}}) {
    parallelize::ParallelConfig parallel;
    parallel.tensor_model_parallel_size = tp;
    parallel.pipeline_model_parallel_size = pp;
    test::run_ranks(2, [&](const comm::Group& world) {
      const parallelize::PipelinePlan plan = parallelize::plan_pipeline(parallel, config);
      const comm::ParallelGroups groups =
          parallelize::make_groups(world, parallel, nullptr, config, plan);
      parallelize::RankModel model =
          parallelize::make_model({.config = config,
                                   .build = {.dtype = at::kDouble, .tp = groups.tp()},
                                   .max_sequence = test::kServedContext,
                                   .gradients = false},
                                  groups, plan);
      model.model->initialize(3);
      RankedSession session(model, {.texts = 2, .pages = 20}, world);
      if (world.rank() != 0) return session.follow();
      Metrics metrics;
      Scheduler scheduler(session, {.texts = 2, .pass_tokens = 40}, metrics);
      std::vector<std::shared_ptr<RecordingSink>> sinks;
      for (int i = 0; i < 3; ++i) {
        sinks.push_back(std::make_shared<RecordingSink>());
        scheduler.submit({{.prompt = prompt,
                           .sampling = {.temperature = 0},
                           .max_new_tokens = 9,
                           .sink = sinks.back()}},
                         nullptr);
      }
      scheduler.run([] { return true; });
      for (const auto& sink : sinks) EXPECT_EQ(sink->tokens, expected);
      EXPECT_EQ(sinks[2]->reused, 128);
    });
  }
}

} // namespace
} // namespace pentatron::serve
