// The rules of the loop: what reaches a step, what stops it, what an evaluation says.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <numbers>

#include "pentatron/checkpoint/tensor_io.h"
#include "pentatron/data/batch.h"
#include "pentatron/data/dataset.h"
#include "pentatron/models/model.h"
#include "pentatron/optim/lr_schedule.h"
#include "pentatron/trainer/metrics/train_log.h"
#include "pentatron/trainer/step.h"
#include "tests/support/model_cost.h"
#include "tests/support/model_pass.h"
#include "tests/support/ranks.h"
#include "tests/trainer/training_fixture.h"

namespace pentatron::trainer {
namespace {

using test::error_of;
using ::testing::HasSubstr;
using ::testing::Not;

TEST_F(Training, IsDeterminedBySeeds) {
  const std::vector<std::string> dropout = {"model.hidden_dropout=0.1",
                                            "model.attention_dropout=0.1"};
  const auto with = [&](const char* setting) {
    return test::run(config({dropout[0], dropout[1], setting}));
  };
  const test::Trace one = with("seed=1"), again = with("seed=1");
  for (size_t i = 0; i < one.steps.size(); ++i) {
    EXPECT_EQ(one.steps[i]["loss"], again.steps[i]["loss"]);
    EXPECT_EQ(one.steps[i]["grad_norm"], again.steps[i]["grad_norm"]);
  }
  for (const auto& [name, weight] : one.weights)
    EXPECT_TRUE(at::equal(weight, again.weights.at(name))) << name;
  EXPECT_NE(one.steps[0]["loss"], with("seed=2").steps[0]["loss"]);
  EXPECT_NE(with("dataset.seed=1").steps[0]["loss"], with("dataset.seed=2").steps[0]["loss"]);
}

TEST_F(Training, GetsTheRateOfEveryStyle) {
  const double pi = std::numbers::pi;
  const auto between = [](double share) { return 0.1 + 0.9 * share; };
  const auto check = [&](std::vector<std::string> settings,
                         const std::function<double(int)>& formula) {
    const std::vector<double> got = rates(settings);
    ASSERT_EQ(got.size(), 8u);
    EXPECT_NEAR(got[0], 0.5, 1e-15);
    EXPECT_NEAR(got[1], 1.0, 1e-15);
    for (int n = 3; n <= 8; ++n)
      EXPECT_NEAR(got[static_cast<size_t>(n - 1)], formula(n), 1e-14) << settings[0] << " " << n;
  };
  check({"scheduler.lr_decay_style=constant"}, [](int) { return 1.0; });
  check({"scheduler.lr_decay_style=linear"}, [&](int n) { return between(1 - (n - 2) / 6.0); });
  check({"scheduler.lr_decay_style=cosine"},
        [&](int n) { return between(0.5 * (1 + std::cos(pi * (n - 2) / 6.0))); });
  check({"scheduler.lr_decay_style=inverse-square-root"}, [](int n) { return std::sqrt(2.0 / n); });
  const std::map<std::string, std::function<double(double)>> anneal = {
      {"linear", [](double q) { return 1 - q; }},
      {"cosine", [&](double q) { return 0.5 * (1 + std::cos(pi * q)); }},
      {"exponential", [](double q) { return 2 * std::pow(0.5, q) - 1; }},
      {"minus_sqrt", [](double q) { return 1 - std::sqrt(q); }}};
  for (const auto& [style, shape] : anneal) {
    check({"scheduler.lr_decay_style=WSD", "scheduler.lr_wsd_decay_iters=4",
           "scheduler.lr_wsd_decay_style=" + style},
          [&](int n) { return n <= 4 ? 1.0 : between(shape((n - 4) / 4.0)); });
  }
}

TEST_F(Training, CountsSamplesWhereTheRunIsMeasuredInThem) {
  const test::Trace trace =
      test::run(config({"train.train_samples=20", "optimizer.lr=1.0", "optimizer.min_lr=0",
                        "train.rampup_batch_size=[2, 2, 6]", "train.global_batch_size=4",
                        "scheduler.lr_warmup_samples=4", "scheduler.lr_decay_style=linear"}));
  int64_t consumed = 0;
  for (const Json& step : trace.steps) {
    consumed += step["global_batch_size"].get<int64_t>();
    EXPECT_EQ(step["consumed_samples"], consumed);
    const auto n = static_cast<double>(consumed);
    EXPECT_NEAR(step["learning_rate"].get<double>(),
                n <= 4 ? n / 4 : std::max(0.0, 1 - (n - 4) / 16), 1e-14);
  }
  EXPECT_GE(consumed, 20);
  EXPECT_EQ(trace.steps.front()["global_batch_size"], 2);
  EXPECT_EQ(trace.steps.back()["global_batch_size"], 4);
}

TEST_F(Training, TheBatchGrowsByTokens) {
  const test::Trace trace =
      test::run(config({"train.step_batch_size_schedule=0:2 64:4 128:6", "train.train_iters=5"}));
  const std::vector<int64_t> expected = {2, 2, 4, 6, 6}; // thresholds at 4 and 8 samples
  for (size_t i = 0; i < expected.size(); ++i)
    EXPECT_EQ(trace.steps.at(i)["global_batch_size"], expected[i]) << i;
}

/// Row 100 of the embedding is NaN, and only the second step has token 100.
class NotFinite : public Training {
 protected:
  NotFinite() {
    at::Tensor tokens = at::arange(4 * 4 * 9, at::kLong).remainder(90).view({4, 4, 9}).clone();
    tokens[1][2][3] = 100;
    checkpoint::write_tensors(scratch / "batches.safetensors", {{"tokens", tokens}});
  }
  Config batches(std::vector<std::string> more) const {
    more.insert(more.begin(),
                {"dataset.type=batches", "dataset.path=" + (scratch / "batches.safetensors"),
                 "model.untie_embeddings_and_output_weights=true", "train.train_iters=4"});
    return config(std::move(more));
  }
  static void plant(Trainer& trainer) {
    at::Tensor rows = trainer.model().model.params().find("embedding.word.weight").value();
    rows[100].fill_(std::nan(""));
  }
};

TEST_F(NotFinite, AStepIsSkippedAndTheRestGoesOn) {
  Trainer trainer(batches({"train.on_nan=skip"}), {});
  plant(trainer);
  const test::Trace trace = test::finish(trainer);
  ASSERT_EQ(trace.steps.size(), 4u);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(trace.steps[i]["nan"], i == 1) << i;
    EXPECT_EQ(trace.steps[i]["skipped"], i == 1) << i;
    EXPECT_EQ(trace.steps[i]["loss"].is_null(), i == 1) << i;
  }
  for (const auto& [name, weight] : trace.weights) {
    if (name != "embedding.word.weight") {
      EXPECT_TRUE(at::isfinite(weight).all().item<bool>()) << name;
    }
  }
}

TEST_F(NotFinite, AStepThatIsSkippedHoldsTheSchedules) {
  const optim::LrCurve curve = optim::lr_curve({.lr_warmup_iters = 3}, 1e-2, 1e-3, {.iters = 4});
  for (const bool late : {false, true}) {
    SCOPED_TRACE(late);
    const std::string folder = scratch / fmt::format("held{}", late ? 1 : 0);
    const auto run = [&](std::vector<std::string> more, bool planted) {
      more.insert(more.end(),
                  {"train.on_nan=skip", "scheduler.lr_warmup_iters=3", "logger.log_interval=100"});
      Trainer trainer(batches(std::move(more)), {});
      if (planted) plant(trainer);
      return test::finish(trainer, {.late_figures = late});
    };
    const test::Trace whole = run({}, true);
    const test::Trace begin =
        run({"train.exit_interval=2", "checkpoint.save=" + folder}, /*planted=*/true);
    const test::Trace rest = run({"checkpoint.load=" + folder}, /*planted=*/false);
    std::vector<Json> parts = begin.steps;
    parts.insert(parts.end(), rest.steps.begin(), rest.steps.end());
    for (const std::vector<Json>& steps : {whole.steps, parts}) {
      ASSERT_EQ(steps.size(), 4u);
      for (size_t i = 0; i < 4; ++i) {
        EXPECT_EQ(steps[i]["skipped"], i == 1) << i;
        EXPECT_EQ(steps[i]["learning_rate"], curve.at(std::array{1, 2, 2, 3}[i])) << i;
        EXPECT_EQ(steps[i]["consumed_samples"], 4 * (i + 1)) << i;
      }
    }
    for (const auto& [name, weight] : whole.weights)
      EXPECT_TRUE(at::allclose(rest.weights.at(name), weight, 0, 0, /*equal_nan=*/true)) << name;
  }
}

TEST_F(NotFinite, TheRunStopsAndNamesTheFirstLayer) {
  Trainer trainer(batches({}), {});
  plant(trainer);
  const std::string message = error_of([&] { trainer.run(); });
  EXPECT_THAT(message, HasSubstr("iteration 2"));
  EXPECT_THAT(message, HasSubstr("first seen in embedding")) << message;
  EXPECT_EQ(test::read_metrics(scratch / "log1/metrics.jsonl").size(), 1u);
}

TEST_F(NotFinite, ALayerInTheMiddleIsNamed) {
  Trainer trainer(batches({}), {});
  at::Tensor weight = trainer.model().model.params().find("layers.1.mlp.fc1.weight").value();
  weight[0][0] = std::nan("");
  EXPECT_THAT(error_of([&] { trainer.run(); }), HasSubstr("first seen in layers.1"));
}

TEST_F(NotFinite, TooManySkipsInARowStopTheRun) {
  Trainer trainer(batches({"train.on_nan=skip", "train.max_skipped_iterations=2"}), {});
  trainer.model().model.params().find("final_norm.weight").value().fill_(std::nan(""));
  const auto before =
      trainer.model().model.params().find("layers.0.mlp.fc1.weight").value().clone();
  EXPECT_THAT(error_of([&] { trainer.run(); }), HasSubstr("iteration 3"));
  EXPECT_TRUE(
      at::equal(before, trainer.model().model.params().find("layers.0.mlp.fc1.weight").value()))
      << "skipped steps leave the weights alone";
}

TEST_F(Training, EvaluationIsAnIndependentPassOverTheSameSamples) {
  const Config c = config({"dtype=fp64", "dataset.split=70,30", "train.eval_interval=2",
                           "train.eval_iters=3", "train.global_batch_size=4"});
  Trainer trainer(c, {});
  const test::Trace trace = test::finish(trainer);
  ASSERT_TRUE(trace.report.validation);
  const data::Datasets sets = data::open_datasets(
      c.dataset,
      {.sequence_length = 16, .vocab_size = 257, .tokenizer = data::make_tokenizer(c.tokenizer)});
  double sum = 0;
  for (int64_t n = 0; n < 3 * 4; ++n) {
    at::Tensor tokens = at::empty({17}, at::kLong);
    const int64_t ids[] = {n};
    const data::Batch batch = data::make_batch(*sets.validation, ids);
    std::copy_n(batch.ints("input_ids").begin(), 16, tokens.data_ptr<int64_t>());
    tokens[16] = batch.ints("labels").back();
    const at::Tensor logits =
        test::logits(trainer.model().model, trainer.model().store, tokens.narrow(0, 0, 16).clone(),
                     nn::SequenceLayout::dense(1, 16, {0}, at::kCPU));
    sum -= at::log_softmax(logits.to(at::kDouble), 1)
               .gather(1, tokens.narrow(0, 1, 16).unsqueeze(1))
               .sum()
               .item<double>();
  }
  EXPECT_NEAR(trace.report.validation->loss.value(), sum / (12 * 16), 1e-12);
  EXPECT_EQ(perplexity(2.5), std::exp(2.5));
}

TEST(NonfiniteText, NamesWhatIsNotFiniteAlone) {
  const double inf = std::numeric_limits<double>::infinity();
  StepResult result{.loss = std::nan(""), .grad_norm = inf, .finite = false};
  EXPECT_EQ(nonfinite_text(result), "loss nan and gradient norm inf are not finite");
  result.loss = 3;
  result.first_nonfinite = "layers.0 on rank 1";
  EXPECT_EQ(nonfinite_text(result),
            "gradient norm inf is not finite, first seen in layers.0 on rank 1");
  EXPECT_EQ(nonfinite_text({.loss = -inf, .grad_norm = 2, .finite = false}),
            "loss -inf is not finite");
}

TEST_F(Training, WithoutStepsItOnlyEvaluates) {
  const test::Trace trace =
      test::run(config({"train.train_iters=0", "train.eval_interval=1", "dataset.split=50,50"}));
  EXPECT_EQ(trace.report.iterations, 0);
  EXPECT_FALSE(trace.report.last_loss);
  ASSERT_TRUE(trace.report.validation);
  EXPECT_NEAR(trace.report.validation->loss.value(), std::log(257.0), 0.7);
  EXPECT_FALSE(test::run(config({"train.train_iters=0"})).report.validation);
}

TEST_F(Training, PreparedBatchesAreValidatedOnAFileOfTheirOwn) {
  // Two rows in each file: of training twice, so that a global batch of 4 is full.
  const at::Tensor rows = at::randint(257, {1, 2, 9}, at::kLong);
  checkpoint::write_tensors(scratch / "train.safetensors",
                            {{"tokens", at::cat({rows, rows}, 1).repeat({2, 1, 1})}});
  checkpoint::write_tensors(scratch / "valid.safetensors", {{"tokens", rows}});
  const test::Trace trace = test::run(
      config({"dataset.type=batches", "dataset.path=" + (scratch / "train.safetensors"),
              "dataset.valid_data_path=" + (scratch / "valid.safetensors"), "train.train_iters=2",
              "train.eval_interval=1", "optimizer.lr=0", "optimizer.min_lr=0"}));
  ASSERT_TRUE(trace.report.validation);
  EXPECT_NEAR(trace.report.validation->loss.value(), trace.steps.back()["loss"].get<double>(),
              1e-5);
}

TEST_F(Training, BadInputIsOneSentence) {
  at::Tensor tokens = at::zeros({2, 4, 9}, at::kLong);
  const std::string file = scratch / "b.safetensors";
  const auto error = [&](std::vector<std::string> more) {
    more.insert(more.begin(),
                {"dataset.type=batches", "dataset.path=" + file, "train.train_iters=2"});
    return error_of([&] { test::run(config(more)); });
  };
  checkpoint::write_tensors(file, {{"tokens", tokens}});
  EXPECT_THAT(error({"train.train_iters=3"}), HasSubstr("train.train_iters=3 needs 12 samples"));
  EXPECT_THAT(error({"logger.sample_prompts=[a]"}),
              HasSubstr("logger.sample_prompts needs a tokenizer"));
  EXPECT_THAT(error({"train.micro_batch_size=3"}), HasSubstr("train.micro_batch_size=3"));
  tokens[1][0][0] = 257;
  checkpoint::write_tensors(file, {{"tokens", tokens}});
  EXPECT_THAT(error({}), HasSubstr("tokens[1, 0, 0]=257 is outside the vocabulary (0 to 256)"));
  checkpoint::write_tensors(file, {{"tokens", tokens.to(at::kDouble)}});
  EXPECT_THAT(error({}), HasSubstr("tokens is F64"));
  checkpoint::write_tensors(file, {{"tokens", tokens[0]}});
  EXPECT_THAT(error({}), HasSubstr("tokens is I64 [4, 9]"));
  checkpoint::write_tensors(file, {{"other", tokens}});
  EXPECT_THAT(error({}), HasSubstr("it has other [2, 4, 9]"));
  std::ofstream(file) << "no safetensors file at all";
  EXPECT_THAT(error({}), HasSubstr(file));
  const auto text = [&](std::vector<std::string> more) {
    return error_of([&] { test::run(config(more)); });
  };
  EXPECT_THAT(text({"model.vocab_size=256"}), HasSubstr("model.vocab_size=256"));
  EXPECT_THAT(text({"train.seq_length=64", "dataset.split=1,99"}),
              HasSubstr("but one sample needs 65"));
  EXPECT_THAT(text({"train.seq_length=65"}), HasSubstr("model.max_position_embeddings=64"));
  EXPECT_THAT(text({"dataset.path=" + (scratch / "none")}), HasSubstr("does not exist"));
  EXPECT_THAT(text({"checkpoint.load=" + (scratch / "none")}), HasSubstr("none does not exist"));
}

} // namespace
} // namespace pentatron::trainer
