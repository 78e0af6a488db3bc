// Training in fp16 whose gradients overflow for real, and the loss scale that answers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "pentatron/checkpoint/sharded/folders.h"
#include "pentatron/checkpoint/sharded/manifest.h"
#include "pentatron/optim/loss_scale.h"
#include "pentatron/trainer/loss_scaling.h"
#include "tests/support/log_capture.h"
#include "tests/support/ranks.h"
#include "tests/trainer/tiny_run.h"

namespace pentatron::trainer {
namespace {

namespace fs = std::filesystem;
using test::error_of;
using test::log_of;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class LossScaling : public testing::Test {
 protected:
  Config config(const std::string& name, std::vector<std::string> more, int ranks = 1) const {
    more.insert(more.begin(), {"dtype=fp16", "logger.dir=" + (scratch / (name + "_log"))});
    return test::tiny(data, std::move(more), ranks);
  }
  test::Trace run(const std::string& name, std::vector<std::string> more) const {
    return test::run(config(name, std::move(more)));
  }
  static void expect_same_weights(const test::Trace& a, const test::Trace& b) {
    for (const auto& [name, weight] : b.weights)
      EXPECT_TRUE(at::equal(a.weights.at(name), weight)) << name;
  }
  test::Scratch scratch;
  std::string data = test::write_documents(scratch / "data.jsonl", 300);
};

TEST_F(LossScaling, FollowsTheRuleAndHoldsTheSchedules) {
  const test::Trace trace =
      run("long", {"train.train_iters=40", "mixed_precision.loss_scale_window=3",
                   "scheduler.lr_warmup_iters=5", "scheduler.weight_decay_incr_style=linear",
                   "scheduler.start_weight_decay=0", "scheduler.end_weight_decay=0.1"});
  const test::Trace fp32 =
      test::run(test::tiny(data, {"train.train_iters=40", "scheduler.lr_warmup_iters=5",
                                  "logger.dir=" + (scratch / "fp32_log")}));
  ASSERT_EQ(trace.steps.size(), 40u);
  optim::LossScaler scaler({.window = 3});
  size_t held = 0;
  for (size_t i = 0; i < trace.steps.size(); ++i) {
    const Json& step = trace.steps[i];
    const bool skipped = step.at("skipped").get<int>() > 0;
    scaler.update(skipped);
    EXPECT_EQ(step.at("loss_scale").get<double>(), scaler.scale()) << i;
    EXPECT_EQ(step.at("nan").get<int>(), 0) << i;
    EXPECT_EQ(step.at("grad_norm").is_null(), skipped) << i;
    EXPECT_EQ(step.at("learning_rate"), fp32.steps[i - held].at("learning_rate")) << i;
    EXPECT_EQ(step.at("consumed_samples"), fp32.steps[i].at("consumed_samples")) << i;
    held += skipped;
  }
  EXPECT_GE(held, 10u) << "2^32 is far too large";
  EXPECT_LE(held, 30u);
  EXPECT_LT(trace.steps.back().at("loss").get<double>(),
            0.8 * trace.steps.front().at("loss").get<double>());
}

TEST_F(LossScaling, OfSamplesHoldsTheSchedulesToo) {
  const std::vector<std::string> keys = {"train.train_samples=60",
                                         "train.rampup_batch_size=[2, 2, 20]",
                                         "scheduler.lr_warmup_samples=8"};
  const test::Trace trace = run("samples", keys);
  int64_t applied = 0;
  std::vector<std::pair<int64_t, double>> rates; // by samples of applied steps
  for (const Json& step : trace.steps) {
    rates.emplace_back(applied + step.at("global_batch_size").get<int64_t>(),
                       step.at("learning_rate").get<double>());
    if (step.at("skipped").get<int>() == 0) applied += step.at("global_batch_size").get<int64_t>();
  }
  const optim::LrCurve curve =
      optim::lr_curve({.lr_warmup_samples = 8}, 1e-2, 1e-3, {.samples = 60});
  for (const auto& [samples, rate] : rates) EXPECT_EQ(rate, curve.at(samples)) << samples;
}

TEST_F(LossScaling, ASkippedStepChangesNothing) {
  const std::vector<std::string> stuck = {"train.train_iters=5",
                                          "mixed_precision.min_loss_scale=4294967296",
                                          "checkpoint.save=" + (scratch / "stuck")};
  test::Trace trace;
  const std::string log = log_of([&] { trace = run("stuck", stuck); });
  EXPECT_EQ(trace.report.iterations, 5);
  expect_same_weights(trace, run("start", {"train.train_iters=0"}));
  for (const Json& step : trace.steps) {
    EXPECT_EQ(step.at("skipped").get<int>(), 1);
    EXPECT_EQ(step.at("loss_scale").get<double>(), 4294967296.0);
    EXPECT_EQ(step.at("learning_rate"), trace.steps[0].at("learning_rate"));
  }
  EXPECT_THAT(log, HasSubstr("gradients still overflow at the smallest loss scale, "
                             "mixed_precision.min_loss_scale=4.29497e+09\n  try: "
                             "mixed_precision.min_loss_scale=65536"));
  const Json state = checkpoint::read_manifest(fs::path(scratch / "stuck") / "step_00000005").state;
  EXPECT_EQ(state.at("optimizer_steps").get<int64_t>(), 0);
  EXPECT_EQ(state.at("skipped_iterations").get<int64_t>(), 5);
  EXPECT_EQ(state.at("consumed_samples").get<int64_t>(), 20);
  EXPECT_EQ(state.at("loss_scale").at("hysteresis_tracker").get<int64_t>(), -3);
}

/// An optimizer with a rule of its own; all must see gradients of the loss, not of the scaled one.
class LossScalingOf : public LossScaling, public testing::WithParamInterface<const char*> {};

TEST_P(LossScalingOf, APowerOfTwoChangesNoBit) {
  const auto weights = [&](const std::string& dtype, const std::string& scale) {
    std::vector<std::string> keys = {"dtype=" + dtype, "mixed_precision." + scale,
                                     "train.train_iters=6"};
    std::istringstream more(GetParam());
    for (std::string key; more >> key;) keys.push_back(key);
    return run(dtype + scale, keys);
  };
  for (const char* dtype : {"fp32", "bf16"}) {
    const test::Trace plain = weights(dtype, "loss_scale=1"),
                      scaled = weights(dtype, "loss_scale=4096");
    expect_same_weights(scaled, plain);
    for (size_t i = 0; i < plain.steps.size(); ++i)
      for (const char* key : {"loss", "grad_norm", "learning_rate"})
        EXPECT_EQ(scaled.steps[i].at(key), plain.steps[i].at(key)) << key << i;
    EXPECT_EQ(scaled.steps[0].at("loss_scale").get<double>(), 4096);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Works, LossScalingOf,
    testing::Values("optimizer.optimizer=adam", "optimizer.optimizer=sgd optimizer.clip_grad=0.01",
                    "optimizer.optimizer=lion optimizer.clip_grad=0", "optimizer.optimizer=muon",
                    "model.num_moe_experts=4 model.moe_aux_loss_coeff=0.1 "
                    "model.moe_router_load_balancing_type=seq_aux_loss model.moe_z_loss_coeff=0.1",
                    "model.num_moe_experts=4 model.moe_aux_loss_coeff=0.1 "
                    "model.moe_router_load_balancing_type=global_aux_loss",
                    "model.mtp_num_layers=1 optimizer.grad_norm_skip_threshold=3.6",
                    "train.recompute=full train.micro_batch_size=1", "peft.type=lora"));

TEST_F(LossScaling, ResumesBitForBitThroughOverflowsInAnyLayout) {
  const std::vector<std::string> keys = {"train.train_iters=24",
                                         "mixed_precision.loss_scale_window=2",
                                         "model.hidden_dropout=0.1", "scheduler.lr_warmup_iters=4"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), keys.begin(), keys.end());
    return more;
  };
  const test::Trace whole = run("whole", with({"checkpoint.save=" + (scratch / "whole")}));
  for (const int at : {7, 19}) {
    const std::string name = "parts" + std::to_string(at), folder = scratch / name;
    run(name, with({"train.exit_interval=" + std::to_string(at), "checkpoint.save=" + folder}));
    const test::Trace rest =
        run(name, with({"checkpoint.save=" + folder, "checkpoint.load=" + folder}));
    ASSERT_EQ(rest.steps.size(), 24u);
    for (size_t i = 0; i < 24; ++i)
      for (const char* key : {"loss", "loss_scale", "skipped", "learning_rate"})
        EXPECT_EQ(rest.steps[i].at(key), whole.steps[i].at(key)) << key << " of step " << i;
    expect_same_weights(rest, whole);
    // On two ranks sums round otherwise; the scale goes on where it was.
    for (const std::string key : {"ddp.zero_stage=2", "parallel.tensor_model_parallel_size=2"}) {
      const Config c = config(name + "_" + key,
                              with({"checkpoint.load=" + folder + "/" + checkpoint::step_name(at),
                                    "train.exit_interval=" + std::to_string(at + 1), key}),
                              2);
      test::run_ranks(2, [&](const comm::Group& world) {
        const TrainReport report = Trainer(c, world).run();
        if (world.rank() != 0) return;
        const Json step = test::read_metrics(report.metrics.string()).back();
        for (const char* figure : {"loss_scale", "skipped", "learning_rate"})
          EXPECT_EQ(step.at(figure), whole.steps[static_cast<size_t>(at)].at(figure))
              << key << " " << figure;
      });
    }
  }
}

TEST_F(LossScaling, ACheckpointWithoutAStateBeginsAnew) {
  const std::string folder = scratch / "constant";
  run("constant",
      {"checkpoint.save=" + folder, "mixed_precision.loss_scale=128", "train.train_iters=2"});
  const std::string log = log_of([&] {
    const test::Trace trace = run("dynamic", {"checkpoint.load=" + folder, "train.train_iters=3"});
    EXPECT_EQ(trace.steps.back().at("loss_scale").get<double>(), 4294967296.0);
  });
  EXPECT_THAT(log, HasSubstr("the checkpoint contains no dynamic loss scale, so it starts at "
                             "mixed_precision.initial_loss_scale=4.29497e+09"));
}

TEST_F(LossScaling, AConstantSkipsOverflowsAndHoldsTheSchedules) {
  const std::string folder = scratch / "constant", huge = "mixed_precision.loss_scale=1e12";
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.end(), {"train.train_iters=8", "scheduler.lr_warmup_iters=4",
                             "checkpoint.save=" + folder});
    return more;
  };
  test::Trace trace;
  const std::string log = log_of([&] {
    trace = run("huge", with({huge, "train.exit_interval=4"}));
  });
  ASSERT_EQ(trace.steps.size(), 4u) << "train.on_nan=stop does not count";
  for (const Json& step : trace.steps) {
    EXPECT_EQ(step.at("skipped").get<int>(), 1);
    EXPECT_EQ(step.at("nan").get<int>(), 0);
    EXPECT_EQ(step.at("loss_scale"), trace.steps[0].at("loss_scale"));
    EXPECT_EQ(step.at("learning_rate"), trace.steps[0].at("learning_rate"));
  }
  EXPECT_EQ(trace.steps.back().at("consumed_samples").get<int64_t>(), 16);
  expect_same_weights(trace, run("start", {"train.train_iters=0"}));
  const std::string warning =
      "iteration 2: gradients overflow again at the constant loss scale, "
      "mixed_precision.loss_scale=1e+12\n  try: "
      "mixed_precision.loss_scale=1024, or remove mixed_precision.loss_scale";
  EXPECT_THAT(log, HasSubstr(warning));
  EXPECT_THAT(log.substr(log.find(warning) + warning.size()), Not(HasSubstr("overflow again")))
      << "once";
  const Json state = checkpoint::read_manifest(fs::path(folder) / "step_00000004").state;
  EXPECT_EQ(state.at("skipped_iterations").get<int64_t>(), 4);
  EXPECT_EQ(state.at("held_iterations").get<int64_t>(), 4);

  const test::Trace rest =
      run("fine", with({"mixed_precision.loss_scale=1024", "checkpoint.load=" + folder}));
  ASSERT_EQ(rest.steps.size(), 4u);
  EXPECT_EQ(rest.steps[0].at("skipped").get<int>(), 0);
  EXPECT_EQ(rest.steps[0].at("learning_rate"), trace.steps[0].at("learning_rate"));
  EXPECT_NE(rest.steps[1].at("learning_rate"), trace.steps[0].at("learning_rate"));
}

StepResult result_with(double loss, double grad_norm) {
  StepResult result;
  result.computed = true;
  result.loss = loss;
  result.grad_norm = grad_norm;
  result.finite = std::isfinite(loss) && std::isfinite(grad_norm);
  return result;
}

TEST_F(LossScaling, OfAConstantIsNoAnswerToALossThatIsNotFinite) {
  trainer::LossScaling constant({.loss_scale = 64}, Precision::kBf16);
  EXPECT_TRUE(constant.overflowed(result_with(1, INFINITY)));
  EXPECT_FALSE(constant.overflowed(result_with(NAN, NAN)));
  EXPECT_FALSE(constant.overflowed(result_with(1, 1)));
  EXPECT_FALSE(trainer::LossScaling({}, Precision::kBf16).overflowed(result_with(1, INFINITY)))
      << "there is no scale";
  const std::string single = log_of([&] {
    for (const double norm : std::vector<double>{INFINITY, 1, INFINITY})
      constant.after_step(1, result_with(1, norm), 4);
  });
  EXPECT_THAT(single, Not(HasSubstr("try:")));
  EXPECT_THAT(log_of([&] { constant.after_step(4, result_with(1, INFINITY), 4); }),
              HasSubstr("try: mixed_precision.loss_scale=4, or remove"));
  EXPECT_EQ(constant.scheduled_iterations(4), 1);
  EXPECT_EQ(constant.scheduled_samples(16), 4);
}

TEST_F(LossScaling, AnyStepThatUpdatesNothingHoldsTheSchedules) {
  StepResult large = result_with(1, 9);
  large.too_large = true;
  const StepResult skipped[] = {large, result_with(NAN, NAN), result_with(1, INFINITY),
                                StepResult{}};              // without targets
  const auto dtypes = {Precision::kBf16, Precision::kFp16}; // without a scale, with one
  for (const Precision dtype : dtypes)
    for (size_t i = 0; i < std::size(skipped); ++i) {
      SCOPED_TRACE(i);
      trainer::LossScaling scaling({}, dtype);
      scaling.after_step(1, skipped[i], 4);
      scaling.after_step(2, result_with(1, 1), 6);
      EXPECT_EQ(scaling.scheduled_iterations(2), 1);
      EXPECT_EQ(scaling.scheduled_samples(10), 6);
      checkpoint::TrainState state;
      scaling.save(state);
      trainer::LossScaling resumed({}, dtype);
      resumed.load(state, /*fresh=*/false);
      EXPECT_EQ(resumed.scheduled_iterations(2), 1);
      EXPECT_EQ(resumed.scheduled_samples(10), 6);
    }
}

TEST_F(LossScaling, StaysInAStepWithoutTargets) {
  trainer::LossScaling scaling({.loss_scale_window = 2}, Precision::kFp16);
  scaling.after_step(1, result_with(1, 1), 4);
  const double before = scaling.scale();
  scaling.after_step(2, StepResult{}, 4);
  EXPECT_EQ(scaling.scale(), before) << "no step of a row of two";
  scaling.after_step(3, result_with(1, 1), 4);
  EXPECT_EQ(scaling.scale(), 2 * before);
}

TEST_F(LossScaling, ScalesAreNumbersOfFp32) {
  for (const std::string key : {"loss_scale", "initial_loss_scale", "min_loss_scale"})
    for (const std::string value : {"1e39", "3e38", "1e-46", "0"}) {
      const std::string given = "mixed_precision." + key + "=";
      EXPECT_THAT(error_of([&] {
                    load_config(std::nullopt, {"dtype=fp16", given + value});
                  }),
                  AllOf(HasSubstr(given),
                        HasSubstr("is not allowed: it must be >= 1e-37, <= 1e+37"),
                        HasSubstr("try: " + given)))
          << value;
    }
  EXPECT_THAT(
      error_of([&] {
        load_config(std::nullopt, {"dtype=fp16", "mixed_precision.min_loss_scale=4294967296.5"});
      }),
      HasSubstr("try: mixed_precision.initial_loss_scale=4294967296.5"));
}

TEST_F(LossScaling, ALossThatIsNotFiniteStopsTheRunAtTheSmallestScale) {
  // A learning rate that ruins the model: no scale helps.
  const std::string message = error_of([&] {
    run("ruin", {"optimizer.lr=1e4", "optimizer.min_lr=1e4", "optimizer.clip_grad=0",
                 "optimizer.optimizer=sgd", "train.train_iters=60",
                 "mixed_precision.initial_loss_scale=16"});
  });
  EXPECT_THAT(message, HasSubstr("loss nan and gradient norm nan are not finite")) << message;
  EXPECT_THAT(message, HasSubstr("try: a lower optimizer.lr")) << message;
}

TEST_F(LossScaling, TrainsWhatFp32Trains) {
  const auto last = [&](const std::string& dtype) {
    const test::Trace trace =
        run(dtype, {"dtype=" + dtype, "train.train_iters=120",
                    "mixed_precision.initial_loss_scale=65536", "optimizer.lr=3e-3"});
    double sum = 0;
    for (size_t i = 100; i < 120; ++i) sum += trace.steps[i].at("loss").get<double>();
    return sum / 20;
  };
  const double fp32 = last("fp32");
  EXPECT_NEAR(last("fp16"), fp32, 0.01 * fp32);
}

} // namespace
} // namespace pentatron::trainer
