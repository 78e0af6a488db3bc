// Steps and evaluations without targets, and what is counted of documents in packed samples.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <iostream>
#include <set>
#include <sstream>

#include "pentatron/base/log.h"
#include "pentatron/checkpoint/sharded/folders.h"
#include "pentatron/checkpoint/sharded/manifest.h"
#include "pentatron/checkpoint/tensor_io.h"
#include "pentatron/comm/rank_threads.h"
#include "pentatron/data/indexed/indexed_writer.h"
#include "pentatron/models/model.h"
#include "pentatron/optim/lr_schedule.h"
#include "pentatron/trainer/metrics/train_log.h"
#include "pentatron/trainer/step.h"
#include "tests/support/log_capture.h"
#include "tests/support/model_cost.h"
#include "tests/support/model_pass.h"
#include "tests/support/ranks.h"
#include "tests/trainer/training_fixture.h"

namespace pentatron::trainer {
namespace {

using test::error_of;
using ::testing::HasSubstr;
using ::testing::Not;

/// An indexed corpus whose documents have 15 tokens and an end each, and then one of ends alone:
/// with dataset.eod_mask_loss=true its samples have no targets.
class WithoutTargets : public Training {
 protected:
  static constexpr int32_t kEnd = 256;
  void write(int full, int empty, size_t length = 16) const {
    data::IndexedWriter writer(scratch / "corpus", {});
    for (int d = 0; d < full; ++d) {
      std::vector<int32_t> tokens(length, kEnd);
      for (size_t i = 0; i + 1 < length; ++i)
        tokens[i] = static_cast<int32_t>((7 * static_cast<size_t>(d) + i) % 200);
      writer.add_sequence(tokens);
      writer.end_document();
    }
    if (empty > 0) writer.add_sequence(std::vector<int32_t>(static_cast<size_t>(16 * empty), kEnd));
    if (empty > 0) writer.end_document();
    writer.commit();
  }
  Config masked(std::vector<std::string> more, int ranks = 1) const {
    more.insert(more.begin(),
                {"dataset.type=indexed", "dataset.path=" + (scratch / "corpus"),
                 "dataset.split=100,0,0", "dataset.order=stable", "dataset.eod_mask_loss=true",
                 "train.micro_batch_size=1", "train.global_batch_size=1"});
    return config(std::move(more), ranks);
  }
};

TEST_F(WithoutTargets, AStepHasNoLossAnywhere) {
  write(6, 7); // 12 samples
  testing::internal::CaptureStderr();
  const test::Trace trace = test::run(
      masked({"train.train_iters=12", "logger.log_interval=1", "logger.plot=true",
              "checkpoint.save=" + (scratch / "run"), "checkpoint.save_interval=1",
              "checkpoint.keep=1", "checkpoint.keep_best=1", "checkpoint.keep_best_metric=loss"}));
  const std::string log = testing::internal::GetCapturedStderr();
  ASSERT_EQ(trace.steps.size(), 12u);
  int without = 0;
  double best = 1e9, last = 0;
  for (const Json& step : trace.steps) {
    const bool none = step["loss"].is_null();
    without += none;
    EXPECT_EQ(step["skipped"], none);
    EXPECT_EQ(step["nan"], false);
    EXPECT_EQ(step.contains("grad_norm"), !none) << step;
    for (const char* rate : {"tokens_per_s", "tflops", "mfu"}) // of nothing
      EXPECT_EQ(step.contains(rate), !none) << rate << ": " << step;
    if (none) continue;
    EXPECT_GT(step["loss"], 0.5);
    last = step["loss"];
    best = std::min(best, last);
  }
  EXPECT_EQ(without, 6);
  EXPECT_EQ(trace.report.last_loss, last);
  // Of the checkpoints stay the last one and that of the lowest loss, which is none of 0.
  std::vector<double> kept;
  for (const auto& folder : checkpoint::checkpoints_in(scratch / "run")) {
    const Json state = checkpoint::read_manifest(folder.path).state;
    if (state.contains("loss")) kept.push_back(state["loss"]);
  }
  EXPECT_THAT(kept, testing::Contains(best));
  EXPECT_LE(kept.size(), 2u);
  // The console has a line of each step, and a loss only where there is one.
  const auto count = [&](const std::string& text) {
    int n = 0;
    for (size_t at = log.find(text); at != std::string::npos; at = log.find(text, at + 1)) ++n;
    return n;
  };
  EXPECT_EQ(count("its batch has no targets"), without);
  EXPECT_EQ(count("/12 | "), 12);
  EXPECT_EQ(count("/12 | loss "), 12 - without);
  EXPECT_EQ(count("/12 | no targets | "), without);
}

TEST_F(WithoutTargets, AStepHoldsTheSchedules) {
  write(6, 7); // 12 samples, of which 6 have targets
  const optim::LrCurve curve = optim::lr_curve({.lr_warmup_iters = 4}, 1e-2, 1e-3, {.iters = 12});
  for (const bool late : {false, true}) {
    SCOPED_TRACE(late);
    const std::string folder = scratch / fmt::format("held{}", late ? 1 : 0);
    const auto run = [&](std::vector<std::string> more) {
      more.insert(more.end(), {"train.train_iters=12", "scheduler.lr_warmup_iters=4",
                               "logger.log_interval=100"});
      Trainer trainer(masked(std::move(more)), {});
      return test::finish(trainer, {.late_figures = late});
    };
    const test::Trace whole = run({});
    const test::Trace begin = run({"train.exit_interval=7", "checkpoint.save=" + folder});
    const test::Trace rest = run({"checkpoint.load=" + folder});
    ASSERT_EQ(begin.steps.size(), 7u);
    std::vector<Json> parts = begin.steps;
    parts.insert(parts.end(), rest.steps.begin(), rest.steps.end());
    for (const std::vector<Json>& steps : {whole.steps, parts}) {
      ASSERT_EQ(steps.size(), 12u);
      int64_t held = 0;
      for (int64_t i = 0; i < 12; ++i) {
        const Json& step = steps[static_cast<size_t>(i)];
        EXPECT_EQ(step["learning_rate"], curve.at(i + 1 - held)) << i;
        EXPECT_EQ(step["consumed_samples"], i + 1) << i;
        held += step["loss"].is_null() ? 1 : 0;
        if (i == 6) {
          const Json state = checkpoint::read_manifest(folder + "/step_00000007").state;
          EXPECT_EQ(state.at("held_iterations"), held) << "of seven steps at least one";
          EXPECT_EQ(state.at("held_samples"), held);
        }
      }
      EXPECT_EQ(held, 6);
    }
    for (const auto& [name, weight] : whole.weights)
      EXPECT_TRUE(at::equal(rest.weights.at(name), weight)) << name;
  }
}

TEST_F(WithoutTargets, ARunWithNoneAtAllHasNoLoss) {
  write(0, 6);
  test::Trace trace;
  const std::string log = test::log_of([&] { trace = test::run(masked({"train.train_iters=4"})); });
  EXPECT_THAT(log, Not(HasSubstr("one iteration takes"))) << "none was computed";
  EXPECT_FALSE(trace.report.last_loss);
  EXPECT_FALSE(trace.report.trained);
  EXPECT_EQ(trace.report.steps, 4);
  for (const Json& step : trace.steps) EXPECT_TRUE(step["loss"].is_null());
}

/// Of a step some samples, and some whole steps, have no targets: their denominator is 0 on every
/// rank of tensor and pipeline groups, on some ranks of a data-parallel group.
TEST_F(WithoutTargets, LossesAreThoseOfOneRankInEveryLayout) {
  write(9, 15);
  const std::vector<std::string> all = {"dtype=fp64", "train.train_iters=8",
                                        "train.global_batch_size=2", "model.num_layers=4"};
  const test::Trace one = test::run(masked(all));
  ASSERT_EQ(one.steps.size(), 8u);
  const auto without =
      std::ranges::count_if(one.steps, [](const Json& s) { return s["loss"].is_null(); });
  ASSERT_GT(without, 0);
  ASSERT_LT(without, 8);
  const std::vector<std::pair<int, std::vector<std::string>>> layouts = {
      {2, {"parallel.tensor_model_parallel_size=2"}},
      {2, {"parallel.tensor_model_parallel_size=2", "parallel.sequence_parallel=true"}},
      {2, {"parallel.pipeline_model_parallel_size=2"}},
      {2, {"parallel.pipeline_model_parallel_size=2", "parallel.pipeline_schedule=zb_h1"}},
      {2, {"ddp.zero_stage=1"}},
      {8, {"parallel.tensor_model_parallel_size=2", "parallel.pipeline_model_parallel_size=2"}},
  };
  for (const auto& [ranks, keys] : layouts) {
    SCOPED_TRACE(fmt::format("{} ranks, {}", ranks, fmt::join(keys, " ")));
    std::vector<std::string> settings = all;
    settings.insert(settings.end(), keys.begin(), keys.end());
    const std::string dir = scratch / fmt::format("{}", fmt::join(keys, "-"));
    settings.push_back("logger.dir=" + dir);
    const Config c = masked(settings, ranks);
    comm::run_ranks(ranks, [&](const comm::Group& world) {
      log::set_thread_output(nullptr, world.rank() == 0);
      Trainer(c, world).run();
      log::set_thread_output(nullptr, true);
    });
    const std::vector<Json> steps = test::read_metrics(dir + "/metrics.jsonl");
    ASSERT_EQ(steps.size(), one.steps.size());
    for (size_t i = 0; i < steps.size(); ++i) {
      SCOPED_TRACE(i + 1);
      ASSERT_EQ(steps[i]["loss"].is_null(), one.steps[i]["loss"].is_null());
      ASSERT_EQ(steps[i].contains("grad_norm"), one.steps[i].contains("grad_norm"));
      if (steps[i]["loss"].is_null()) continue;
      EXPECT_NEAR(double(steps[i]["loss"]), double(one.steps[i]["loss"]), 1e-12);
      EXPECT_NEAR(double(steps[i]["grad_norm"]), double(one.steps[i]["grad_norm"]), 1e-11);
    }
  }
}

TEST_F(WithoutTargets, SkipsAreToldOncePerRunWhateverTheNumberOfRanks) {
  write(6, 7);
  const Config stops = masked({"train.train_iters=3", "train.global_batch_size=4"});
  const Config skips =
      masked({"train.train_iters=3", "train.on_nan=skip", "train.global_batch_size=4"});
  testing::internal::CaptureStderr();
  comm::run_ranks(4, [&](const comm::Group& world) {
    log::set_thread_output(nullptr, world.rank() == 0); // as the program does
    Trainer trainer(stops, world);
    trainer.model().model.params().find("final_norm.weight").value().fill_(std::nan(""));
    EXPECT_THAT(error_of([&] { trainer.run(); }), HasSubstr(" on rank 0"));
    log::set_thread_output(nullptr, true);
  });
  const auto expect_each_line_once = [](const std::string& log) {
    std::set<std::string> seen;
    std::istringstream lines(log);
    for (std::string line; std::getline(lines, line);)
      EXPECT_TRUE(line.empty() || seen.insert(line).second) << line << "\n" << log;
  };
  expect_each_line_once(testing::internal::GetCapturedStderr());
  testing::internal::CaptureStderr();
  comm::run_ranks(4, [&](const comm::Group& world) {
    log::set_thread_output(nullptr, world.rank() == 0);
    Trainer trainer(skips, world);
    trainer.model().model.params().find("final_norm.weight").value().fill_(std::nan(""));
    trainer.run();
    log::set_thread_output(nullptr, true);
  });
  const std::string log = testing::internal::GetCapturedStderr();
  std::cout << log;
  expect_each_line_once(log);
  EXPECT_THAT(log, HasSubstr("skipped iteration 1"));
  EXPECT_THAT(log, HasSubstr("are not finite"));
}

TEST_F(WithoutTargets, MfuCountsTheSquaresOfDocuments) {
  write(12, 0, /*length=*/5); // 60 tokens, 3 samples
  const auto flops = [&](const char* reset) {
    const Json step =
        test::run(masked({"train.train_iters=1", "dataset.eod_mask_loss=false", reset}))
            .steps.at(0);
    return 1e12 * step["tflops"].get<double>() * step["step_time_s"].get<double>();
  };
  const Config c = masked({});
  const auto cost = [&](int64_t squares) {
    return test::model_cost(c.model, {{.tokens = 16, .squared_lengths = squares}}).total_flops();
  };
  EXPECT_NEAR(flops("dataset.reset_attention_mask=false") / cost(16 * 16), 1, 1e-9);
  const double apart = flops("dataset.reset_attention_mask=true");
  // A sample begins at token 0, 16 or 32 of the corpus, so with the last 5, 4 or 3 tokens of a
  // document.
  std::vector<double> possible;
  for (const auto& lengths : {std::vector<int64_t>{5, 5, 5, 1}, {4, 5, 5, 2}, {3, 5, 5, 3}}) {
    int64_t squares = 0;
    for (const int64_t length : lengths) squares += length * length;
    possible.push_back(cost(squares));
  }
  EXPECT_THAT(possible, testing::Contains(testing::DoubleNear(apart, 1e-6 * apart)));
}

TEST_F(WithoutTargets, MfuAppliesTheWindowToEachDocument) {
  write(12, 0, /*length=*/5); // see above
  const int64_t window = 2;
  const Json step = test::run(masked({"train.train_iters=1", "dataset.eod_mask_loss=false",
                                      "dataset.reset_attention_mask=true", "model.window_size=2"}))
                        .steps.at(0);
  const double flops = 1e12 * step["tflops"].get<double>() * step["step_time_s"].get<double>();
  std::vector<double> possible;
  for (const auto& lengths : {std::vector<int64_t>{5, 5, 5, 1}, {4, 5, 5, 2}, {3, 5, 5, 3}}) {
    int64_t squares = 0; // twice the pairs that are seen, the diagonal counted half
    for (const int64_t length : lengths)
      for (int64_t i = 0; i < length; ++i) squares += 2 * std::min(i + 1, window) - (i < window);
    possible.push_back(
        test::model_cost(masked({}).model, {{.tokens = 16, .squared_lengths = squares}})
            .total_flops());
  }
  EXPECT_THAT(possible, testing::Contains(testing::DoubleNear(flops, 1e-6 * flops)));
}

TEST_F(Training, AValidationWithoutTargetsIsTold) {
  const at::Tensor tokens = at::randint(257, {2, 4, 9}, at::kLong);
  checkpoint::write_tensors(scratch / "train.safetensors", {{"tokens", tokens}});
  const at::Tensor inputs = tokens.slice(2, 0, 8).contiguous();
  const auto told = [&](const at::Tensor& labels, std::vector<std::string> more) {
    checkpoint::write_tensors(scratch / "valid.safetensors",
                              {{"input_ids", inputs}, {"labels", labels}});
    more.insert(more.begin(),
                {"dataset.type=batches", "dataset.path=" + (scratch / "train.safetensors"),
                 "dataset.valid_data_path=" + (scratch / "valid.safetensors"),
                 "train.train_iters=1", "train.eval_interval=1", "train.eval_iters=1"});
    testing::internal::CaptureStderr();
    const test::Trace trace = test::run(config(more));
    const std::string log = testing::internal::GetCapturedStderr();
    EXPECT_EQ(trace.report.validation.has_value(), log.find("no target") == std::string::npos);
    return log;
  };
  at::Tensor labels = tokens.slice(2, 1, 9).clone();
  EXPECT_THAT(told(labels, {}), testing::Not(HasSubstr("no target")));
  labels[0].fill_(-100); // of the one batch that is read
  EXPECT_THAT(told(labels, {}),
              HasSubstr("the 4 samples that the validation reads have no target, so "
                        "there is no validation loss\n  try: "
                        "dataset.full_validation=true"));
  EXPECT_THAT(told(labels, {"checkpoint.save=" + (scratch / "run"), "checkpoint.keep=1",
                            "checkpoint.keep_best=1"}),
              HasSubstr("and checkpoint.keep_best=1 may have nothing to compare"));
  EXPECT_THAT(told(labels, {"dataset.full_validation=true"}), testing::Not(HasSubstr("no target")));
  labels.fill_(-100);
  EXPECT_THAT(told(labels, {"dataset.full_validation=true"}),
              HasSubstr("the 8 samples that the validation reads have no target, so there is no "
                        "validation loss\n  try: other validation samples"));
}

} // namespace
} // namespace pentatron::trainer
