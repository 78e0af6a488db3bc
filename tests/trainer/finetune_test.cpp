// The settings that finetune chooses, and a run with them.
#include "pentatron/trainer/finetune_settings.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "pentatron/base/error.h"
#include "tests/cli/letter_model.h"
#include "tests/support/log_capture.h"
#include "tests/support/quiet_log.h"
#include "tests/support/ranks.h"
#include "tests/trainer/tiny_run.h"

namespace pentatron::trainer {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(FinetuneSettings, SamplesAreAsLongAsTheLongestExample) {
  EXPECT_EQ(finetune_seq_length({.examples = 9, .longest = 601, .limit = 2048}), 640);
  EXPECT_EQ(finetune_seq_length({.examples = 9, .longest = 3, .limit = 2048}), 512);
  EXPECT_EQ(finetune_seq_length({.examples = 9, .longest = 3000, .limit = 2048}), 2048);
  EXPECT_EQ(finetune_seq_length({.examples = 9, .longest = 3, .limit = 40}), 40);
}

TEST(FinetuneSettings, AnEpochHasEnoughSteps) {
  for (const int64_t samples : {1, 30, 60, 1000, 100000})
    for (const int64_t dp : {1, 3, 8}) {
      const BatchFigures b = finetune_batches(samples, 512, dp);
      EXPECT_EQ(b.global_batch_size % (b.micro_batch_size * dp), 0);
      EXPECT_LE(b.global_batch_size / dp, 32);
      EXPECT_LE(b.micro_batch_size * 512, 2048);
      if (b.global_batch_size > dp) {
        EXPECT_GE(samples / b.global_batch_size, 25);
      }
    }
}

class FinetuneRuns : public testing::Test {
 protected:
  FinetuneRuns() {
    test::make_letter_model(scratch_ / "model");
    std::ofstream file(scratch_ / "examples.jsonl");
    for (int i = 0; i < 60; ++i)
      file << fmt::format("{{\"prompt\": \"{} and {} is \", \"completion\": \"{}\"}}\n", i % 7,
                          i % 5, i % 7 + i % 5);
  }
  FinetuneRequest request(const std::vector<std::string>& keys = {}) {
    std::vector<std::string> all = {"train.num_threads=1", "logger.peak_tflops=1", "kernels=order",
                                    "logger.tensorboard=false"};
    all.insert(all.end(), keys.begin(), keys.end());
    return {.model = scratch_ / "model",
            .data = scratch_ / "examples.jsonl",
            .out = scratch_ / "out",
            .overrides = all};
  }
  static std::string value(const FinetuneRun& run, const std::string& key) {
    const auto found = std::ranges::find(run.chosen, key, &ChosenSetting::key);
    return found == run.chosen.end() ? "" : found->value;
  }

  test::Scratch scratch_;
};

TEST_F(FinetuneRuns, ChooseWhatIsNotGiven) {
  const FinetuneRun run = make_finetune_run(request());
  EXPECT_EQ(run.config.peft.type, checkpoint::AdapterType::kLora);
  EXPECT_EQ(run.config.dataset.type, data::DatasetType::kSft);
  EXPECT_EQ(run.config.dataset.split, "95,5,0");
  EXPECT_EQ(run.config.train.seq_length, *run.config.model.longest_sequence());
  EXPECT_EQ(run.config.logger.sample_prompts.size(), 2u);
  EXPECT_EQ(value(run, "optimizer.lr"), "0.001");
  const FinetuneRun given =
      make_finetune_run(request({"optimizer.lr=0.5", "train.global_batch_size=6", "peft.r=3"}));
  EXPECT_EQ(value(given, "optimizer.lr"), "");
  EXPECT_EQ(given.config.optimizer.lr, 0.5);
  EXPECT_EQ(given.config.peft.r, 3);
  EXPECT_EQ(given.config.train.global_batch_size, 6);
  FinetuneRequest all = request();
  all.all_weights = true;
  EXPECT_FALSE(make_finetune_run(all).config.peft.on());
  FinetuneRequest more = request();
  more.epochs = 6;
  EXPECT_EQ(make_finetune_run(more).config.train.train_iters, 2 * run.config.train.train_iters);
}

TEST_F(FinetuneRuns, ShowHowFarTheyHaveReadUnlessProgressIsOff) {
  const auto shown = [&](const std::string& progress) {
    const test::LogCapture terminal(true);
    make_finetune_run(request({progress}));
    return terminal.text();
  };
  EXPECT_THAT(shown("logger.progress=auto"), HasSubstr("reading examples"));
  EXPECT_THAT(shown("logger.progress=off"), Not(HasSubstr("reading examples")));
}

TEST_F(FinetuneRuns, RefuseWhatIsSaidTwice) {
  const auto error = [&](const FinetuneRequest& asked) {
    return test::error_of([&] { make_finetune_run(asked); });
  };
  EXPECT_THAT(error(request({"dataset.path=x.jsonl"})), HasSubstr("try: remove dataset.path"));
  EXPECT_THAT(error(request({"logger.dir=x"})), HasSubstr("try: remove logger.dir"));
  EXPECT_THAT(error(request({"checkpoint.load=x"})), HasSubstr("try: remove checkpoint.load"));
  FinetuneRequest both = request({"train.train_iters=2"});
  EXPECT_EQ(make_finetune_run(both).config.train.train_iters, 2);
  both.epochs = 3;
  EXPECT_THAT(error(both), HasSubstr("--epochs 3 and train.train_iters"));
  FinetuneRequest all = request({"peft.type=lora"});
  all.all_weights = true;
  EXPECT_THAT(error(all), HasSubstr("--all-weights and peft.type"));
}

TEST_F(FinetuneRuns, ChooseWhatFitsWhatIsGiven) {
  const FinetuneRun lower = make_finetune_run(request({"optimizer.lr=1e-5"}));
  EXPECT_DOUBLE_EQ(lower.config.optimizer.min_lr, 1e-6);
  const FinetuneRun warm = make_finetune_run(request({"scheduler.lr_warmup_iters=2"}));
  EXPECT_EQ(value(warm, "scheduler.lr_warmup_fraction"), "");
  EXPECT_EQ(
      value(make_finetune_run(request({"logger.sample_prompts=[]"})), "logger.sample_interval"),
      "");
  const FinetuneRun all = make_finetune_run(request({"peft.type=none"}));
  EXPECT_FALSE(all.config.peft.on());
  EXPECT_EQ(value(all, "peft.r"), "");
}

/// logger.sample_prompts takes texts that begin with { for examples.
TEST_F(FinetuneRuns, PromptsMayBeJson) {
  FinetuneRequest asked = request({"train.train_iters=1"});
  asked.data = scratch_ / "json.jsonl";
  std::ofstream file(asked.data);
  for (int i = 0; i < 60; ++i)
    file << fmt::format(R"({{"prompt": "{{{}, {}}} is ", "completion": "{}"}})", i % 7, i % 5, i)
         << '\n';
  file.close();
  const FinetuneRun run = make_finetune_run(asked);
  EXPECT_THAT(run.config.logger.sample_prompts.at(0), HasSubstr(R"({"prompt":)"));
  const test::QuietLog quiet;
  test::run_ranks(1, [&](const comm::Group& world) {
    EXPECT_EQ(Trainer(run.config, world).run().iterations, 1);
  });
}

TEST_F(FinetuneRuns, BeginAgainWhereNothingWasSaved) {
  const FinetuneRequest asked = request({"train.train_iters=4", "checkpoint.save_interval=1000"});
  const std::string out = scratch_ / "out";
  {
    const test::QuietLog quiet;
    const FinetuneRun run = make_finetune_run(asked);
    test::run_ranks(1, [&](const comm::Group& world) { Trainer(run.config, world).run(); });
  }
  fs::remove_all(fs::path(out) / "checkpoints"); // as if it was killed before its first one
  FinetuneRun again = make_finetune_run(asked);
  EXPECT_EQ(value(again, "checkpoint.load"), "hf:" + (scratch_ / "model"));
  EXPECT_NO_THROW(check_out(asked, again.config));
  const test::QuietLog quiet;
  test::run_ranks(1, [&](const comm::Group& world) {
    EXPECT_EQ(Trainer(again.config, world).run().iterations, 4);
  });
  EXPECT_TRUE(fs::exists(fs::path(out) / "earlier-1/metrics.jsonl"));
  // Not so a run from another model.
  fs::remove_all(fs::path(out) / "checkpoints");
  fs::copy(scratch_ / "model", scratch_ / "other", fs::copy_options::recursive);
  FinetuneRequest other = asked;
  other.model = scratch_ / "other";
  const FinetuneRun third = make_finetune_run(other);
  EXPECT_THAT(test::error_of([&] { check_out(other, third.config); }), HasSubstr("another run"));
}

TEST_F(FinetuneRuns, TakeAnotherFolderThanThatOfAnotherRun) {
  const std::string out = scratch_ / "out";
  fs::create_directories(out);
  std::ofstream(fs::path(out) / "metrics.jsonl") << "{\"iteration\":1,\"loss\":2}\n";
  const FinetuneRequest asked = request();
  const FinetuneRun run = make_finetune_run(asked);
  EXPECT_THAT(test::error_of([&] { check_out(asked, run.config); }),
              HasSubstr("try: --out " + out + "-2"));
  FinetuneRequest other = asked;
  other.out = out + "-2";
  EXPECT_NO_THROW(check_out(other, make_finetune_run(other).config));
}

TEST_F(FinetuneRuns, TrainAndResume) {
  const test::QuietLog quiet;
  FinetuneRequest half = request({"train.exit_interval=3", "peft.r=4"});
  std::vector<double> losses;
  for (int start = 0; start < 2; ++start) {
    const FinetuneRun run = make_finetune_run(half);
    EXPECT_EQ(value(run, "checkpoint.load"), start == 0 ? "hf:" + (scratch_ / "model") : "auto");
    test::run_ranks(1, [&](const comm::Group& world) {
      const TrainReport report = Trainer(run.config, world).run();
      losses.push_back(*report.last_loss);
      EXPECT_EQ(report.iterations, start == 0 ? 3 : 6);
    });
  }
  EXPECT_LT(losses[1], losses[0]);
  // The run goes on from its model, and no command may name another one.
  fs::copy(scratch_ / "model", scratch_ / "other", fs::copy_options::recursive);
  for (const char* model : {"other", "nowhere"}) {
    FinetuneRequest request = half;
    request.model = scratch_ / model;
    const std::string message = test::error_of([&] { make_finetune_run(request); });
    EXPECT_NE(message.find(model), std::string::npos) << message;
  }
  // Nor other examples; the same ones by another path are the same.
  fs::copy(scratch_ / "examples.jsonl", scratch_ / "others.jsonl");
  FinetuneRequest others = request();
  others.data = scratch_ / "others.jsonl";
  EXPECT_THAT(test::error_of([&] { make_finetune_run(others); }),
              AllOf(HasSubstr("has a run on "), HasSubstr("try: --out ")));
  fs::create_symlink(scratch_ / "examples.jsonl", scratch_ / "link.jsonl");
  others.data = scratch_ / "link.jsonl";
  EXPECT_NO_THROW(make_finetune_run(others));
  EXPECT_TRUE(fs::exists(scratch_ / "out/checkpoints/adapter/adapter_config.json"));
  // Another run starts from its adapter, whose rank is not chosen again.
  FinetuneRequest next = request({"peft.load=" + (scratch_ / "out/checkpoints/adapter")});
  next.out = scratch_ / "next";
  EXPECT_EQ(make_finetune_run(next).config.peft.r, 4);
}

} // namespace
} // namespace pentatron::trainer
