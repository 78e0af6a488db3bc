// The running mean of the weights: in checkpoints, in evaluation, in exports, in other layouts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

#include "pentatron/checkpoint/model_source.h"
#include "tests/support/log_capture.h"
#include "tests/trainer/layout_runs.h"
#include "tests/trainer/tiny_run.h"

namespace pentatron::trainer {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using Weights = std::map<std::string, at::Tensor>;

/// All weights of a model in fp64.
Weights read_weights(const std::string& where) {
  const auto source = checkpoint::open_model(where);
  Weights weights;
  for (const auto& [name, spec] : models::param_specs(source->config())) {
    weights[name] = at::empty(spec.shape, at::kDouble);
    source->read(name, {std::vector<int64_t>(spec.shape.size(), 0), spec.shape}, weights[name]);
  }
  return weights;
}

class AverageOfWeights : public testing::Test {
 protected:
  AverageOfWeights() { test::write_documents(scratch / "data.jsonl", 200); }
  Config config(std::vector<std::string> more) const {
    // Each run with a file of metrics of its own.
    static int run = 0;
    more.insert(more.begin(), {"checkpoint.save=" + (scratch / "run"),
                               "logger.dir=" + (scratch / fmt::format("log{}", run++))});
    return test::tiny(scratch / "data.jsonl", std::move(more));
  }
  std::string averaged(const std::string& folder = "run") const {
    return checkpoint::averaged(scratch / folder);
  }
  test::Scratch scratch;
};

TEST_F(AverageOfWeights, IsTheSumOverTheStepsAndPassesOverSkippedOnes) {
  // The third step is above the threshold.
  const std::vector<std::string> keys = {"dtype=fp64", "optimizer.ema_decay=0.6",
                                         "train.train_iters=5", "checkpoint.save_interval=1",
                                         "checkpoint.keep=0"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), keys.begin(), keys.end());
    return config(std::move(more));
  };
  const test::Trace run = test::run(with({}));
  double highest = 0, second = 0;
  for (const Json& step : run.steps) {
    const double norm = step.at("grad_norm").get<double>();
    second = std::max(second, std::min(highest, norm));
    highest = std::max(highest, norm);
  }
  fs::remove_all(scratch / "run");
  const test::Trace skipping = test::run(
      with({fmt::format("optimizer.grad_norm_skip_threshold={}", (highest + second) / 2)}));
  test::run(config({"dtype=fp64", "train.train_iters=1", "optimizer.lr=0", "optimizer.min_lr=0",
                    "checkpoint.save=" + (scratch / "start")}));
  Weights mean = read_weights(scratch / "start");
  int64_t skipped = 0;
  for (int step = 1; step <= 5; ++step) {
    const std::string folder = fmt::format("run/step_{:08}", step);
    const bool passed = skipping.steps[static_cast<size_t>(step - 1)].at("skipped").get<bool>();
    skipped += passed ? 1 : 0;
    const Weights weights = read_weights(scratch / folder),
                  average = read_weights(averaged(folder));
    for (auto& [name, value] : mean) {
      if (!passed) value = 0.6 * value + 0.4 * weights.at(name);
      EXPECT_LE((average.at(name) - value).norm().item<double>(),
                1e-13 * value.norm().item<double>())
          << name << " " << step;
    }
  }
  EXPECT_GE(skipped, 1);
}

TEST_F(AverageOfWeights, IsThatOfOneRankInEveryLayoutAndGoesOnInOthers) {
  test::write_documents(scratch / "documents.jsonl", 400);
  const auto train = [&](const std::string& name, const std::string& folder,
                         const std::string& more) {
    test::Layout layout{"one", "ema", 1, "", true};
    for (const test::Layout& known : test::layouts())
      if (known.name == name) layout = known;
    const test::QuietLog quiet;
    test::run_ranks(layout.ranks, [&](const comm::Group& world) {
      Trainer(test::layout_config("ema",
                                  layout.keys +
                                      " dtype=fp64 train.train_iters=8 "
                                      "train.eval_interval=3 logger.dir=" +
                                      (scratch / (folder + "_log")) +
                                      " checkpoint.save=" + (scratch / folder) + more,
                                  layout.ranks, scratch.path),
              world)
          .run();
    });
  };
  train("one", "one", "");
  const Weights one = read_weights(averaged("one")), last = read_weights(scratch / "one");
  const std::vector<std::string> layouts = {"ema_zero1_tp2", "ema_zero2_pp2_zb_v", "ema_zero3",
                                            "one"};
  for (size_t i = 0; i < layouts.size(); ++i) {
    const std::string& next = layouts[(i + 1) % layouts.size()];
    SCOPED_TRACE(layouts[i] + " goes on as " + next);
    const std::string folder = "by_" + std::to_string(i);
    train(layouts[i], folder, " train.exit_interval=4");
    train(next, folder, " checkpoint.load=" + (scratch / folder));
    const Weights average = read_weights(averaged(folder));
    for (const auto& [name, value] : one)
      EXPECT_LE((average.at(name) - value).norm().item<double>(),
                1e-10 * value.norm().item<double>())
          << name;
  }
  EXPECT_GT((one.begin()->second - last.begin()->second).norm().item<double>(), 1e-4);
}

TEST_F(AverageOfWeights, EvaluationWithItDoesNotChangeTraining) {
  for (const char* dtype : {"fp32", "bf16"}) {
    const std::vector<std::string> common = {fmt::format("dtype={}", dtype),
                                             "optimizer.ema_decay=0.9", "dataset.split=80,20,0",
                                             "train.eval_interval=1", "train.train_iters=4"};
    const auto with = [&](const std::string& more) {
      std::vector<std::string> all = common;
      all.push_back(more);
      all.push_back("checkpoint.save=" + (scratch / (dtype + more.substr(19))));
      return config(all);
    };
    const test::Trace plain = test::run(with("train.eval_weights=model")),
                      averaged = test::run(with("train.eval_weights=ema"));
    for (const auto& [name, weight] : plain.weights)
      EXPECT_TRUE(at::equal(weight, averaged.weights.at(name))) << name;
    EXPECT_NE(plain.report.validation->loss, averaged.report.validation->loss);
  }
}

TEST_F(AverageOfWeights, BeginsAndEndsOnResumeWithASentence) {
  const auto log_of = [&](std::vector<std::string> more) {
    more.emplace_back("checkpoint.load=" + (scratch / "run"));
    return test::log_of([&] { test::run(config(std::move(more))); });
  };
  test::run(config({"train.train_iters=1"}));
  EXPECT_THAT(log_of({"train.train_iters=2", "optimizer.ema_decay=0.9"}),
              HasSubstr("the running mean of the weights starts from the weights of this"));
  EXPECT_NO_THROW(read_weights(averaged()));
  EXPECT_THAT(log_of({"train.train_iters=3"}), HasSubstr("mean of the weights is not loaded"));
  EXPECT_THAT(test::error_of([&] { read_weights(averaged()); }),
              HasSubstr("has no running mean of the weights"));
}

TEST_F(AverageOfWeights, IsExported) {
  test::run(config({"dtype=bf16", "train.train_iters=3", "optimizer.ema_decay=0.9",
                    "checkpoint.export_hf=true", "checkpoint.export_weights=ema"}));
  const Weights average = read_weights(averaged()), last = read_weights(scratch / "run");
  const auto exported = checkpoint::open_model(scratch / "run/hf/step_00000003");
  EXPECT_EQ(exported->dtype(), SafeDtype::kBF16);
  for (const auto& [name, value] : read_weights(scratch / "run/hf/step_00000003"))
    EXPECT_TRUE(at::equal(value, average.at(name).to(at::kBFloat16).to(at::kDouble))) << name;
  EXPECT_FALSE(at::equal(average.begin()->second, last.begin()->second));
}

TEST_F(AverageOfWeights, MeansGoOnInOtherTypes) {
  const std::vector<std::array<const char*, 2>> types = {
      {"fp32", "fp32"}, {"fp8", "fp8"}, {"bf16", "fp16"}, {"fp16", "fp8"}, {"fp8", "bf16"}};
  for (size_t i = 0; i < types.size(); ++i) {
    // The schedule of the learning rate is that of the whole run.
    std::vector<std::string> keys = {fmt::format("train.exit_interval={}", i + 1),
                                     fmt::format("optimizer.exp_avg_dtype={}", types[i][0]),
                                     fmt::format("optimizer.exp_avg_sq_dtype={}", types[i][1])};
    keys.emplace_back("train.train_iters=5");
    if (i > 0) keys.push_back("checkpoint.load=" + (scratch / "run"));
    testing::internal::CaptureStderr();
    const test::Trace run = test::run(config(keys));
    const std::string log = testing::internal::GetCapturedStderr();
    if (i > 0) {
      EXPECT_THAT(log, HasSubstr("exp_avg of the optimizer's state was saved in"));
    }
    // As with means in fp32 all along, but for rounding.
    const test::Trace exact =
        test::run(config({keys[0], "train.train_iters=5",
                          "checkpoint.save=" + (scratch / fmt::format("exact{}", i))}));
    EXPECT_NEAR(run.steps.back().at("loss").get<double>(),
                exact.steps.back().at("loss").get<double>(), 0.01);
    for (const auto& [name, weight] : exact.weights)
      EXPECT_LE((run.weights.at(name) - weight).norm().item<double>(),
                0.05 * weight.norm().item<double>())
          << name;
  }
}

} // namespace
} // namespace pentatron::trainer
