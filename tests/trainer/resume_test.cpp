// A run that was interrupted and resumed is the run that was not.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <csignal>
#include <regex>

#include "pentatron/base/descriptors.h"
#include "pentatron/base/log.h"
#include "pentatron/checkpoint/convert.h"
#include "pentatron/checkpoint/model_source.h"
#include "pentatron/checkpoint/run_checkpoint.h"
#include "pentatron/checkpoint/sharded/shard_file.h"
#include "pentatron/comm/rank_threads.h"
#include "tests/support/log_capture.h"
#include "tests/support/ranks.h"
#include "tests/trainer/tiny_run.h"

namespace pentatron::trainer {
namespace {

namespace fs = std::filesystem;
using test::error_of;
using test::log_of;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

/// With everything whose state could be forgotten: dropout, a growing batch, warm-up, text.
class Resume : public testing::TestWithParam<std::string> {
 protected:
  Config config(const std::string& name, std::vector<std::string> more) const {
    const std::map<std::string, std::vector<std::string>> optimizers = {
        {"narrow",
         {"optimizer.exp_avg_dtype=bf16", "optimizer.exp_avg_sq_dtype=bf16",
          "optimizer.store_param_remainders=true"}},
        {"delayed",
         {"mixed_precision.fp8=hybrid", "mixed_precision.fp8_recipe=delayed",
          "mixed_precision.fp8_amax_history_len=4", "mixed_precision.fp8_amax_compute_algo=max",
          "mixed_precision.initial_loss_scale=67108864"}},
        {"nvfp4", {"mixed_precision.fp4=e2m1"}},
        {"muon", {"optimizer.optimizer=muon"}},
        {"normuon",
         {"optimizer.optimizer=adaptive_muon", "optimizer.adaptive_muon_moment2_method=normuon"}},
        {"adafactor", {"optimizer.optimizer=adafactor", "optimizer.adafactor_beta1=0.9"}},
        {"average",
         {"optimizer.ema_decay=0.9", "train.eval_weights=ema", "train.eval_interval=4",
          "dataset.split=80,20,0"}},
        {"away",
         {"optimizer.ema_decay=0.9", "offload.optimizer=true", "offload.dir=/var/tmp",
          "offload.optimizer_fraction=0.7", "optimizer.qk_clip=true",
          "optimizer.qk_clip_threshold=0.5"}},
        {"codes", {"optimizer.exp_avg_dtype=fp8", "optimizer.exp_avg_sq_dtype=fp16"}},
        {"slow",
         {"optimizer.exp_avg_dtype=fp8", "optimizer.exp_avg_sq_dtype=fp8",
          "optimizer.adam_beta1=0.95", "optimizer.adam_beta2=0.999"}}};
    const std::string type = GetParam().substr(0, 4);
    if (GetParam().size() > 5) {
      const auto& keys = optimizers.at(GetParam().substr(5));
      more.insert(more.end(), keys.begin(), keys.end());
    }
    std::vector<std::string> all = {"dtype=" + type,
                                    "model.hidden_dropout=0.1",
                                    "model.attention_dropout=0.1",
                                    "train.train_iters=10",
                                    "train.global_batch_size=6",
                                    "train.rampup_batch_size=[2, 2, 20]",
                                    "scheduler.lr_warmup_iters=3",
                                    "logger.dir=" + (scratch / (name + "_log")),
                                    "checkpoint.save=" + (scratch / name)};
    all.insert(all.end(), more.begin(), more.end());
    return test::tiny(test::write_documents(scratch / "data.jsonl", 200), all);
  }
  test::Scratch scratch;
};

TEST_P(Resume, IsBitForBitTheRunThatWasNotInterrupted) {
  const test::Trace whole = test::run(config("whole", {}));
  const test::Trace first = test::run(config("parts", {"train.exit_interval=5"}));
  EXPECT_EQ(first.report.reason, StopReason::kExitInterval);
  EXPECT_EQ(first.report.iterations, 5);
  ASSERT_EQ(first.steps.size(), 5u);
  const test::Trace second = test::run(config("parts", {"checkpoint.load=" + (scratch / "parts")}));
  EXPECT_EQ(second.report.reason, StopReason::kFinished);
  ASSERT_EQ(whole.steps.size(), 10u);
  ASSERT_EQ(second.steps.size(), 10u) << "the file of metrics goes on";
  for (size_t i = 0; i < 10; ++i) {
    for (const char* key : {"iteration", "loss", "grad_norm", "learning_rate", "consumed_samples",
                            "global_batch_size", "skipped", "nan"})
      EXPECT_EQ(second.steps[i][key], whole.steps[i][key]) << key << " of step " << i;
  }
  for (const auto& [name, weight] : whole.weights)
    EXPECT_TRUE(at::equal(second.weights.at(name), weight)) << name;
  for (const char* file :
       {"model_00000_of_00001.safetensors", "optimizer_00000_of_00001.safetensors"})
    EXPECT_EQ(content_of(fs::path(scratch / "parts") / "step_00000010" / file),
              content_of(fs::path(scratch / "whole") / "step_00000010" / file))
        << file;
  EXPECT_NE(whole.steps[0]["global_batch_size"], whole.steps[9]["global_batch_size"]);
}

INSTANTIATE_TEST_SUITE_P(Types, Resume,
                         testing::Values("fp64", "fp32", "bf16", "bf16_narrow", "fp32_muon",
                                         "bf16_muon", "bf16_normuon", "fp32_adafactor",
                                         "bf16_average", "bf16_away", "bf16_codes", "bf16_slow",
                                         "bf16_delayed", "fp16_delayed", "bf16_nvfp4"),
                         [](const auto& info) { return info.param; });

/// Master weights in fp32 and as remainders are the same run, also when it changes from one to the
/// other; long enough for weights halfway between two numbers of bf16.
class Masters : public testing::TestWithParam<const char*> {
 protected:
  Config config(const std::string& name, std::vector<std::string> more) const {
    std::vector<std::string> all = {"dtype=bf16",
                                    "model.vocab_size=2000",
                                    "optimizer.lr=0.01",
                                    "train.train_iters=60",
                                    fmt::format("optimizer.optimizer={}", GetParam()),
                                    "logger.dir=" + (scratch / (name + "_log")),
                                    "checkpoint.save=" + (scratch / name)};
    all.insert(all.end(), more.begin(), more.end());
    return test::tiny(test::write_documents(scratch / "data.jsonl", 200), all);
  }
  static void expect_same(const test::Trace& one, const test::Trace& other) {
    ASSERT_EQ(one.steps.size(), other.steps.size());
    for (size_t i = 0; i < one.steps.size(); ++i)
      ASSERT_EQ(one.steps[i]["loss"], other.steps[i]["loss"]) << "step " << i;
    for (const auto& [name, weight] : one.weights)
      EXPECT_TRUE(at::equal(other.weights.at(name), weight)) << name;
  }
  test::Scratch scratch;
};

TEST_P(Masters, AreTheSameRunAsRemaindersAlsoWhenTheyChange) {
  const std::string remainders = "optimizer.store_param_remainders=true",
                    load = "checkpoint.load=" + (scratch / "parts");
  const test::Trace whole = test::run(config("whole", {}));
  expect_same(test::run(config("split", {remainders})), whole);
  test::run(config("parts", {"train.exit_interval=15", remainders}));
  test::run(config("parts", {"train.exit_interval=40", load}));
  expect_same(test::run(config("parts", {load, remainders})), whole);
}

INSTANTIATE_TEST_SUITE_P(Rules, Masters,
                         testing::Values("adam", "sgd", "lion", "muon", "adaptive_muon",
                                         "adafactor"),
                         [](const auto& info) { return std::string(info.param); });

class Saving : public testing::Test {
 protected:
  Config config(std::vector<std::string> more) const {
    more.insert(more.begin(), "checkpoint.save=" + (scratch / "run"));
    return test::tiny(data, std::move(more));
  }
  std::vector<std::string> folders() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(scratch / "run")) {
      if (entry.is_directory()) names.push_back(entry.path().filename().string());
    }
    std::sort(names.begin(), names.end());
    return names;
  }
  void damage(const std::string& file) const {
    std::fstream out(scratch / "run/" + file, std::ios::in | std::ios::out | std::ios::binary);
    out.seekg(-20, std::ios::end);
    const int byte = out.get();
    out.seekp(-20, std::ios::end);
    out.put(static_cast<char>(byte ^ 1));
  }
  test::Scratch scratch;
  const std::string load = "checkpoint.load=" + (scratch / "run");
  std::string data = test::write_documents(scratch / "data.jsonl", 100);
};

TEST_F(Saving, KeepsTheNewestOnly) {
  test::run(config({"train.train_iters=5", "checkpoint.save_interval=1", "checkpoint.keep=3"}));
  EXPECT_THAT(folders(), ElementsAre("step_00000003", "step_00000004", "step_00000005"));
  test::run(config({"train.train_iters=6", "checkpoint.save_interval=1", "checkpoint.keep=0",
                    "checkpoint.load=" + (scratch / "run")}));
  EXPECT_EQ(folders().size(), 4u);
}

TEST_F(Saving, ARunThatGoesBackToAnEarlierStepIsTheOneThatIsFound) {
  test::run(config({"train.train_iters=5", "checkpoint.save_interval=1", "checkpoint.keep=0"}));
  const std::string back = load + "/step_00000001";
  test::run(config({"train.train_iters=2", "seed=5", "checkpoint.keep=1", back}));
  EXPECT_THAT(folders(), ElementsAre("earlier-1", "step_00000002"));
  EXPECT_EQ(checkpoint::checkpoints_in(scratch / "run/earlier-1").size(), 4u);
  EXPECT_EQ(checkpoint::newest_checkpoint(scratch / "run")->folder.filename(), "step_00000002");
  const test::Trace again = test::run(config({"train.train_iters=3", "seed=6", load}));
  EXPECT_EQ(checkpoint::newest_checkpoint(scratch / "run")->folder.filename(), "step_00000003");
  Trainer loaded(config({"train.train_iters=3", load}), {});
  for (const nn::Param& param : loaded.model().model.params())
    EXPECT_TRUE(at::equal(param.value(), again.weights.at(param.name()))) << param.name();
}

TEST_F(Saving, ADamagedNewestCheckpointIsNamedAndPassedOver) {
  for (const char* file : {"model_00000_of_00001.safetensors",
                           "optimizer_00000_of_00001.safetensors", "manifest.json"}) {
    fs::remove_all(scratch / "run");
    test::run(config({"train.train_iters=3", "checkpoint.save_interval=1"}));
    damage(std::string("step_00000003/") + file);
    const std::string log = log_of([&] {
      EXPECT_EQ(test::run(config({"train.train_iters=3", load})).report.iterations, 3);
    });
    EXPECT_THAT(log, HasSubstr("step_00000003")) << log;
    EXPECT_THAT(log, HasSubstr(file)) << log;
    EXPECT_THAT(log, HasSubstr("instead")) << log;
    EXPECT_THAT(log, HasSubstr("at iteration 2")) << log;
  }
}

/// Runs `config` on that many ranks; the weights of rank 0 at the end, and what the log says.
struct RanksOutcome {
  std::map<std::string, at::Tensor> weights;
  std::string log;
};
RanksOutcome run_on(int ranks, const Config& config) {
  RanksOutcome outcome;
  testing::internal::CaptureStderr();
  comm::run_ranks(ranks, {.threads_per_rank = 1}, [&](const comm::Group& world) {
    Trainer trainer(config, world);
    trainer.run();
    trainer.read_values([&](const nn::Param& param) {
      if (world.rank() == 0) outcome.weights[param.name()] = param.value().clone();
    });
  });
  outcome.log = testing::internal::GetCapturedStderr();
  return outcome;
}

TEST_F(Saving, DamageThatOneRankReadsSendsAllRanksBackTogether) {
  for (const char* layout : {"tp2", "zero2", "zero3", "zero0"}) {
    for (const char* kind : {"model", "optimizer"}) {
      fs::remove_all(scratch / "run");
      fs::remove_all(scratch / "other");
      const auto with = [&](std::vector<std::string> more) {
        more.insert(more.begin(), {"checkpoint.keep=0", "checkpoint.save_interval=1"});
        Config c = config(std::move(more));
        if (layout[0] == 't') c.parallel.tensor_model_parallel_size = 2;
        if (layout[0] == 'z') c.ddp.zero_stage = layout[4] - '0';
        return c;
      };
      run_on(2, with({"train.train_iters=3"}));
      const std::string file = fmt::format("{}_00001_of_00002.safetensors", kind);
      damage("step_00000003/" + file);
      const RanksOutcome direct = run_on(
          2, with({"train.train_iters=4", "checkpoint.load=" + (scratch / "run/step_00000002"),
                   "checkpoint.save=" + (scratch / "other")}));
      const RanksOutcome back = run_on(2, with({"train.train_iters=4", load}));
      EXPECT_THAT(back.log, HasSubstr("step_00000003: rank 1: reading")) << layout;
      EXPECT_THAT(back.log, HasSubstr(file)) << layout;
      EXPECT_THAT(back.log, HasSubstr("at iteration 2")) << layout;
      for (const auto& [name, weight] : direct.weights)
        EXPECT_TRUE(at::equal(weight, back.weights.at(name))) << layout << " " << kind << name;
    }
  }
}

/// A rank that cannot read (no permission, no mount) says nothing about the checkpoint, so that
/// nobody goes back to an earlier one; damage that another rank sees meanwhile does not count.
TEST(ReadTogether, WhatARankCannotReadIsNoDamage) {
  const auto outcome = [](bool unreadable) {
    return error_of([&] {
      test::run_ranks(3, [&](const comm::Group& world) {
        try {
          checkpoint::read_together(world, [&] {
            if (world.rank() == 1 && unreadable)
              checkpoint::ShardFile("/nowhere/shard.safetensors", {});
            if (world.rank() == 2) throw CheckpointError("a chunk is corrupted");
          });
        } catch (const checkpoint::DamagedCheckpoint& damage) {
          throw CheckpointError(std::string("going back: ") + damage.what());
        }
      });
    });
  };
  EXPECT_THAT(outcome(true), HasSubstr("rank 1: cannot open /nowhere/shard.safetensors"));
  EXPECT_THAT(outcome(true), Not(HasSubstr("going back")));
  EXPECT_THAT(outcome(false), HasSubstr("going back: rank 2: a chunk is corrupted"));
}

TEST(ReadTogether, ARankWithoutDescriptorsSaysWhatHelps) {
  const std::string said = error_of([] {
    test::run_ranks(2, [](const comm::Group& world) {
      try {
        checkpoint::read_together(world, [&] {
          if (world.rank() == 1) require_descriptors(ENFILE, "shard.safetensors");
        });
      } catch (const checkpoint::DamagedCheckpoint&) {
        throw CheckpointError("going back");
      }
    });
  });
  EXPECT_THAT(said, HasSubstr("rank 1: cannot open shard.safetensors: this machine has"));
  EXPECT_THAT(said, HasSubstr("\n  try: a larger /proc/sys/fs/file-max"));
  EXPECT_THAT(said, Not(HasSubstr("try: a folder")));
}

TEST_F(Saving, WhatADamagedCheckpointGaveIsForgotten) {
  // The one before it holds weights alone, so the optimizer's state must be fresh again.
  test::run(config({"train.train_iters=2", "checkpoint.save_interval=1"}));
  const fs::path before = scratch / "run/step_00000001";
  fs::remove_all(before);
  const auto source = checkpoint::open_model(scratch / "run/step_00000002");
  checkpoint::convert_model(
      *source, scratch / "weights",
      {.format = checkpoint::ModelFormat::kPentatron, .config_yaml = source->facts().saved_config});
  fs::rename(checkpoint::checkpoints_in(scratch / "weights").at(0).path, before);
  const test::Trace direct =
      test::run(config({"train.train_iters=3", "checkpoint.load=" + before.string(),
                        "checkpoint.save=" + (scratch / "other")}));
  damage("step_00000002/optimizer_00000_of_00001.safetensors");
  const test::Trace back = test::run(config({"train.train_iters=3", load}));
  for (const auto& [name, weight] : direct.weights)
    EXPECT_TRUE(at::equal(weight, back.weights.at(name))) << name;
}

TEST_F(Saving, ReplicasReadAPartEach) {
  const auto bytes_read = [](const std::string& log) {
    std::vector<double> all;
    const std::regex line(R"(read ([0-9.]+) (\S+) of \S*step_)");
    for (std::sregex_iterator it(log.begin(), log.end(), line), end; it != end; ++it)
      all.push_back(std::stod((*it)[1]) * ((*it)[2].str()[0] == 'M' ? 1024 : 1));
    return all;
  };
  const auto wide = [&](std::vector<std::string> more) {
    // Tensors of many chunks, of which a rank reads none twice and few in part.
    more.insert(more.begin(),
                {"model.hidden_size=256", "model.ffn_hidden_size=4096", "train.train_iters=1"});
    return config(std::move(more));
  };
  run_on(1, wide({}));
  const std::vector<double> alone = bytes_read(run_on(1, wide({load})).log);
  const std::vector<double> four =
      bytes_read(run_on(4, wide({load, "ddp.zero_stage=0", "train.micro_batch_size=1"})).log);
  ASSERT_EQ(alone.size(), 1u);
  ASSERT_EQ(four.size(), 4u);
  for (const double bytes : four) EXPECT_LT(bytes, 0.6 * alone[0]);
}

TEST_F(Saving, TornFilesAndMissingFoldersArePassedOver) {
  test::run(config({"train.train_iters=3", "checkpoint.save_interval=1", "checkpoint.keep=0"}));
  const fs::path run = scratch / "run";
  fs::resize_file(run / "step_00000003/model_00000_of_00001.safetensors", 100);
  EXPECT_EQ(checkpoint::newest_checkpoint(run)->folder, run / "step_00000002");
  fs::remove_all(run / "step_00000003");
  EXPECT_EQ(checkpoint::newest_checkpoint(run)->folder, run / "step_00000002");
  fs::remove(run / "latest");
  EXPECT_EQ(checkpoint::newest_checkpoint(run)->folder, run / "step_00000002");
  fs::remove(run / "step_00000002/optimizer_00000_of_00001.safetensors");
  EXPECT_EQ(checkpoint::newest_checkpoint(run)->folder, run / "step_00000001");
  std::ofstream(run / "step_00000001/manifest.json") << "{";
  EXPECT_THAT(error_of([&] { checkpoint::newest_checkpoint(run); }),
              HasSubstr("contains no intact checkpoint"));
  EXPECT_THAT(error_of([&] { test::run(config({load})); }), HasSubstr("step_00000001"));
  EXPECT_FALSE(checkpoint::newest_checkpoint(scratch / "nothing"));
}

TEST_F(Saving, AnotherModelTypeOrOptimizerIsRefusedByName) {
  test::run(config({}));
  for (const auto& [setting, key] :
       {std::pair{
            "model.num_layers=1",
            "was trained with model.num_layers=2, but this run has model.num_layers=1\n  try: "
            "model.num_layers=2"},
        {"dtype=fp64",
         "was trained with dtype=fp32, but this run has dtype=fp64\n  try: dtype=fp32, "
         "or checkpoint.finetune=true"},
        {"optimizer.optimizer=sgd", "optimizer.optimizer=adam, but this run has "
                                    "optimizer.optimizer=sgd"},
        {"model.rotary_base=500", "model.rotary_base=10000"}}) {
    EXPECT_THAT(error_of([&] { test::run(config({setting, load})); }), HasSubstr(key));
  }
  const std::string log = log_of([&] {
    test::run(config({"train.train_iters=4", "optimizer.lr=2e-3", load}));
  });
  EXPECT_THAT(log, HasSubstr("it used train.train_iters=3 instead of 4, optimizer.lr=0.01"));
}

TEST_F(Saving, OptimizersWithLessStateAreSavedToo) {
  for (const char* momentum : {"optimizer.sgd_momentum=0", "optimizer.sgd_momentum=0.9"}) {
    fs::remove_all(scratch / "run");
    const std::vector<std::string> common = {"optimizer.optimizer=sgd", momentum};
    const auto with = [&](std::vector<std::string> more) {
      more.insert(more.begin(), common.begin(), common.end());
      return config(more);
    };
    const test::Trace whole = test::run(with({"train.train_iters=4", "dtype=bf16"}));
    fs::remove_all(scratch / "run");
    test::run(with({"train.train_iters=4", "dtype=bf16", "train.exit_interval=2"}));
    const test::Trace rest = test::run(with({"train.train_iters=4", "dtype=bf16", load}));
    EXPECT_EQ(rest.report.last_loss, whole.report.last_loss) << momentum;
  }
}

TEST_F(Saving, ALimitOfTimeASignalAndAnIntervalSaveAndStop) {
  test::Trace trace =
      test::run(config({"train.exit_duration_in_mins=1e-9", "train.train_iters=5"}));
  EXPECT_EQ(trace.report.reason, StopReason::kDuration);
  EXPECT_THAT(folders(), ElementsAre("step_00000001"));
  int64_t iteration = 1;
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    fs::remove_all(scratch / "log");
    install_signal_handlers();
    const std::jthread sender([&](const std::stop_token& stop) { // once a step was made
      std::error_code none_yet;
      while (!stop.stop_requested() &&
             int64_t(fs::file_size(scratch / "log/metrics.jsonl", none_yet)) < 100)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      ::kill(::getpid(), signal);
    });
    trace =
        test::run(config({load, "train.train_iters=1000000", "logger.dir=" + (scratch / "log")}));
    EXPECT_EQ(trace.report.reason, StopReason::kSignal);
    EXPECT_EQ(trace.report.signal, signal);
    EXPECT_TRUE(fs::exists(trace.report.checkpoint / "manifest.json"));
    EXPECT_GT(trace.report.iterations, iteration);
    iteration = trace.report.iterations;
  }
  // One that comes before the first step of a run: that step, and a save of it, are not waited for.
  const std::vector<std::string> saved = folders();
  install_signal_handlers();
  std::raise(SIGTERM);
  const auto in_all = [&](int64_t n) { return fmt::format("train.train_iters={}", iteration + n); };
  trace = test::run(config({load, in_all(1)}));
  EXPECT_EQ(trace.report.reason, StopReason::kSignal);
  EXPECT_EQ(trace.report.steps, 0);
  EXPECT_EQ(trace.report.iterations, iteration);
  EXPECT_EQ(folders(), saved);
  install_signal_handlers(); // forgets the signal
  std::signal(SIGINT, SIG_DFL);
  std::signal(SIGTERM, SIG_DFL);
  std::signal(SIGHUP, SIG_DFL);
  trace = test::run(config({load, in_all(1)}));
  EXPECT_EQ(trace.report.reason, StopReason::kFinished);
  EXPECT_EQ(trace.report.iterations, iteration + 1);
  trace = test::run(config({load, in_all(1)}));
  EXPECT_FALSE(trace.report.last_loss) << "nothing was left to do";
}

TEST_F(Saving, AFolderThatCannotBeWrittenIsAnErrorBeforeTheRun) {
  std::ofstream(scratch / "file") << "x";
  for (const char* key : {"checkpoint.save", "logger.dir"}) {
    for (const std::string& folder : {scratch / "file", scratch / "file/below"}) {
      EXPECT_THAT(error_of([&] { test::run(config({std::string(key) + "=" + folder})); }),
                  HasSubstr(std::string(key) + "=" + folder));
    }
  }
}

} // namespace
} // namespace pentatron::trainer
