// How often a training step reads the device on the host, and that reading late changes nothing.
#include "pentatron/trainer/step_queue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <mutex>
#include <set>

#include "pentatron/nn/host_copies.h"
#include "tests/support/quiet_log.h"
#include "tests/support/ranks.h"
#include "tests/trainer/tiny_run.h"

namespace pentatron::trainer {
namespace {

using ::testing::HasSubstr;

std::mutex reads_mutex;
std::map<std::string, int64_t> reads_by_file; // by file

/// Counts reads while it lives.
struct ReadCounter {
  ReadCounter() {
    reads_by_file.clear();
    nn::set_host_read_hook([](const nn::SourceLocation& where) {
      const std::string file = where.file_name();
      const std::lock_guard lock(reads_mutex);
      ++reads_by_file[file.substr(file.find("pentatron/") + 10)];
    });
  }
  ~ReadCounter() { nn::set_host_read_hook(nullptr); }
  ReadCounter(const ReadCounter&) = delete;
};

using Keys = std::vector<std::string>;

Keys with(Keys keys, const Keys& more) {
  keys.insert(keys.end(), more.begin(), more.end());
  return keys;
}

const Keys kFourExperts = {"model.num_moe_experts=4", "model.moe_router_topk=2"};

class StepQueueRun : public testing::Test {
 protected:
  Config config(Keys more, int ranks = 1) {
    more.insert(more.begin(), "logger.dir=" + (scratch / fmt::format("log{}", run_++)));
    return test::tiny(data, std::move(more), ranks);
  }
  test::Trace run(const Keys& keys, bool late) {
    at::set_num_threads(1);
    Trainer trainer(config(keys));
    return test::finish(trainer, {.late_figures = late});
  }
  /// Of the training loop alone.
  std::map<std::string, int64_t> reads(const Keys& keys, bool late) {
    at::set_num_threads(1);
    Trainer trainer(config(keys));
    const ReadCounter counter;
    trainer.run({.late_figures = late});
    return reads_by_file;
  }
  void expect_same(const Keys& keys) {
    const test::Trace each = run(keys, false), late = run(keys, true);
    ASSERT_EQ(each.steps.size(), late.steps.size());
    const std::set<std::string> differs = {"step_time_s", "tokens_per_s", "tflops",   "mfu",
                                           "hfu",         "memory_bytes", "data_wait"};
    for (size_t i = 0; i < each.steps.size(); ++i)
      for (const auto& [key, value] : each.steps[i].items())
        if (!differs.contains(key)) {
          EXPECT_EQ(late.steps[i][key], value) << key << " of step " << i;
        }
    for (const auto& [name, weight] : each.weights)
      EXPECT_TRUE(at::equal(late.weights.at(name), weight)) << name;
  }

  int run_ = 0;
  test::Scratch scratch;
  std::string data = test::write_documents(scratch / "data.jsonl", 200);
  const test::QuietLog quiet;
};

TEST_F(StepQueueRun, APlainStepReadsNothingAndALoggedStepOnce) {
  using Reads = std::map<std::string, int64_t>;
  const std::string place = "trainer/step.cpp";
  const Keys keys = {"optimizer.clip_grad=0.5"};
  const auto reads_of = [&](int steps, int interval) {
    return reads(with(keys, {fmt::format("train.train_iters={}", steps),
                             fmt::format("logger.log_interval={}", interval)}),
                 true);
  };
  EXPECT_EQ(reads_of(8, 100), (Reads{{place, 2}})) << "the first and the last step are logged";
  EXPECT_EQ(reads_of(14, 100), (Reads{{place, 2}})) << "six more steps, and no read more";
  EXPECT_EQ(reads_of(14, 4), (Reads{{place, 5}})) << "1, 4, 8, 12, 14";
}

TEST_F(StepQueueRun, OnACpuEachStepIsReadOnce) {
  EXPECT_EQ(reads({"train.train_iters=6"}, false),
            (std::map<std::string, int64_t>{{"trainer/step.cpp", 6}}));
}

TEST_F(StepQueueRun, WhatNeedsTheHostReadsEachStep) {
  for (const char* key : {"optimizer.optimizer=muon", "optimizer.ema_decay=0.9",
                          "mixed_precision.loss_scale=16", "optimizer.decoupled_weight_decay=false",
                          "optimizer.grad_norm_skip_threshold=100", "train.on_nan=skip"})
    EXPECT_EQ(
        reads({"train.train_iters=6", "logger.log_interval=100", key}, true)["trainer/step.cpp"], 6)
        << key;
  const auto clipping = reads({"train.train_iters=6", "optimizer.qk_clip=true"}, true);
  EXPECT_EQ(clipping.at("trainer/step.cpp"), 6);
  EXPECT_EQ(clipping.at("trainer/qk_clip.cpp"), 6);
}

TEST_F(StepQueueRun, ALayerWithExpertsReadsTheChoicesOfEachMicrobatch) {
  const Keys keys = with(kFourExperts, {"train.train_iters=6", "logger.log_interval=100"});
  constexpr int64_t kPasses = 6 * 2 * 2; // of two layers on two microbatches
  EXPECT_EQ(reads(keys, true),
            (std::map<std::string, int64_t>{{"trainer/step.cpp", 2},
                                            {"parallel/expert/dispatch.cpp", kPasses}}));
  const auto dropping = reads(with(keys, {"model.moe_expert_capacity_factor=1"}), true);
  EXPECT_EQ(dropping.at("parallel/expert/capacity.cpp"), 2 * kPasses);
}

TEST_F(StepQueueRun, LateFiguresAreTheSame) {
  const Keys base = {"train.train_iters=7", "logger.log_interval=3", "optimizer.clip_grad=0.7"};
  for (const Keys& more :
       std::vector<Keys>{{"dtype=fp64"},
                         {"dtype=fp32", "optimizer.optimizer=sgd"},
                         {"dtype=fp32", "optimizer.optimizer=lion"},
                         {"dtype=bf16", "optimizer.store_param_remainders=true"},
                         {"dtype=bf16", "optimizer.exp_avg_dtype=bf16"},
                         {"dtype=fp32", "optimizer.optimizer=muon"},
                         with(kFourExperts, {"model.moe_router_enable_expert_bias=true",
                                             "model.moe_router_score_function=sigmoid"})}) {
    SCOPED_TRACE(more.back());
    expect_same(with(base, more));
  }
}

TEST_F(StepQueueRun, TheDeviceSkipsTheStepsThatTheHostSkips) {
  const Keys base = {"train.train_iters=9", "logger.log_interval=4", "optimizer.clip_grad=0.7",
                     "optimizer.lr=1e-4", "optimizer.min_lr=1e-5"};
  std::vector<double> norms; // of batches, as the weights hardly change
  for (const Json& step : run(base, false).steps) norms.push_back(step["grad_norm"].get<double>());
  std::ranges::sort(norms);
  for (const char* rule : {"adam", "sgd", "lion"}) {
    for (const char* dtype : {"fp32", "bf16"}) {
      Keys keys = with(
          base, {fmt::format("optimizer.grad_norm_skip_threshold={}", (norms[4] + norms[5]) / 2),
                 fmt::format("optimizer.optimizer={}", rule), fmt::format("dtype={}", dtype)});
      if (std::string(dtype) == "bf16") keys.emplace_back("optimizer.store_param_remainders=true");
      SCOPED_TRACE(fmt::format("{} {}", rule, dtype));
      expect_same(keys);
      int64_t skipped = 0;
      for (const Json& step : run(keys, true).steps) skipped += step["skipped"] == true ? 1 : 0;
      EXPECT_GT(skipped, 0);
      EXPECT_LT(skipped, 9);
    }
  }
}

TEST_F(StepQueueRun, AStepWhoseNormIsTooLargeHoldsTheSchedules) {
  const Keys base = {"train.train_iters=9", "logger.log_interval=100", "optimizer.lr=1e-4",
                     "optimizer.min_lr=1e-5", "scheduler.lr_warmup_iters=4"};
  const std::vector<Json> plain = run(base, false).steps;
  std::vector<double> norms; // the first steps, of which the largest is skipped
  for (int i = 0; i < 4; ++i) norms.push_back(plain[static_cast<size_t>(i)]["grad_norm"]);
  std::ranges::sort(norms);
  for (const bool late : {false, true}) {
    SCOPED_TRACE(late);
    const std::string folder = scratch / fmt::format("held{}", late ? 1 : 0);
    const Keys keys =
        with(base, {fmt::format("optimizer.grad_norm_skip_threshold={}", (norms[2] + norms[3]) / 2),
                    "checkpoint.save=" + folder});
    std::vector<Json> steps = run(with(keys, {"train.exit_interval=5"}), late).steps;
    ASSERT_EQ(steps.size(), 5u);
    for (const Json& step : run(with(keys, {"checkpoint.load=" + folder}), late).steps)
      steps.push_back(step);
    ASSERT_EQ(steps.size(), 9u);
    size_t held = 0;
    for (size_t i = 0; i < steps.size(); ++i) {
      EXPECT_EQ(steps[i]["learning_rate"], plain[i - held]["learning_rate"]) << i;
      EXPECT_EQ(steps[i]["consumed_samples"], plain[i]["consumed_samples"]) << i;
      held += steps[i]["skipped"] == true ? 1 : 0;
      if (i == 3) {
        EXPECT_GT(held, 0u) << "before the checkpoint";
      }
    }
    EXPECT_LT(held, 9u);
  }
}

TEST_F(StepQueueRun, ACheckpointBetweenReadsHoldsTheSame) {
  const auto saved = [&](bool late) {
    const std::string folder = scratch / (late ? "late" : "each");
    run({"train.train_iters=7", "logger.log_interval=100", "checkpoint.save=" + folder,
         "checkpoint.save_interval=3"},
        late);
    const std::filesystem::path step = std::filesystem::path(folder) / "step_00000006";
    return std::pair(content_of(step / "optimizer_00000_of_00001.safetensors"),
                     read_json(step / "manifest.json")["state"]);
  };
  const auto each = saved(false), late = saved(true);
  EXPECT_EQ(late.first, each.first);
  EXPECT_EQ(late.second["optimizer_steps"], each.second["optimizer_steps"]);
  EXPECT_EQ(late.second["loss"], each.second["loss"]);
}

TEST_F(StepQueueRun, ALossThatIsNotFiniteIsFoundLate) {
  const Keys ruin = {"optimizer.lr=1e4",        "optimizer.min_lr=1e4", "optimizer.clip_grad=0",
                     "optimizer.optimizer=sgd", "train.train_iters=30", "logger.log_interval=100"};
  const auto message = [&](bool late) { return test::error_of([&] { run(ruin, late); }); };
  const std::string each = message(false);
  EXPECT_THAT(each, HasSubstr("first seen in"));
  EXPECT_EQ(message(true), each) << "the same iteration and layer";
  expect_same(with(
      ruin, {"train.on_nan=skip", "train.max_skipped_iterations=100", "train.train_iters=12"}));
}

/// With ranks that share tensors, parameters and layers.
TEST_F(StepQueueRun, RanksReadLateToo) {
  for (const Keys& layout : std::vector<Keys>{
           {"ddp.zero_stage=1"},
           {"ddp.zero_stage=3"},
           {"parallel.tensor_model_parallel_size=2", "parallel.sequence_parallel=true"},
           {"parallel.pipeline_model_parallel_size=2"},
           {"parallel.context_parallel_size=2"}}) {
    SCOPED_TRACE(layout.front());
    const auto losses = [&](bool late) {
      const Config c = config(with(layout, {"train.train_iters=5", "logger.log_interval=100",
                                            "optimizer.clip_grad=0.7"}),
                              2);
      std::vector<Json> steps;
      test::run_ranks(2, [&](const comm::Group& world) {
        Trainer trainer(c, world);
        const TrainReport report = trainer.run({.late_figures = late});
        if (world.rank() == 0) steps = test::read_metrics(report.metrics.string());
      });
      std::vector<std::pair<double, double>> result;
      for (const Json& step : steps)
        result.emplace_back(step["loss"].get<double>(), step["grad_norm"].get<double>());
      return result;
    };
    const auto each = losses(false);
    EXPECT_EQ(each.size(), 5u);
    EXPECT_EQ(losses(true), each);
  }
}

} // namespace
} // namespace pentatron::trainer
