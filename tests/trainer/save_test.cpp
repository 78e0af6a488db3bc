// Saving while the run goes on: the same bytes, states that are shown, failures that lose nothing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <sys/resource.h>

#include "pentatron/checkpoint/sharded/folders.h"
#include "pentatron/checkpoint/sharded/parity.h"
#include "pentatron/checkpoint/sharded/verify.h"
#include "tests/support/log_capture.h"
#include "tests/trainer/layout_runs.h"

namespace pentatron::test {
namespace {

namespace fs = std::filesystem;
using checkpoint::step_name;
using test::log_of;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

/// While it lives no file of this process grows beyond so many bytes: a disk that is full.
class FullDisk {
 public:
  explicit FullDisk(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{.rlim_cur = bytes, .rlim_max = before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FullDisk() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }
  FullDisk(const FullDisk&) = delete;
  FullDisk& operator=(const FullDisk&) = delete;

 private:
  rlimit before_ = {};
  void (*handler_)(int);
};

class AsyncSave : public testing::Test {
 protected:
  AsyncSave() { write_documents(scratch / "documents.jsonl", 400); }
  /// Trains 4 steps of the layout; returns what rank 0 measured.
  std::vector<Json> train(const std::string& layout_name, const std::string& keys) {
    Layout layout{"one", "gpt2", 1, "", true};
    for (const Layout& known : layouts())
      if (known.name == layout_name) layout = known;
    fs::remove_all(scratch / "logs");
    const auto body = [&](const comm::Group& world) {
      trainer::Trainer trainer(
          layout_config("gpt2",
                        layout.keys + " train.eval_interval=0 " + "train.train_iters=4 " + keys,
                        layout.ranks, scratch.path),
          world);
      const trainer::TrainReport report = trainer.run();
      if (world.rank() == 0) checkpoint = report.checkpoint;
    };
    if (layout.ranks == 1) {
      at::set_num_threads(1);
      body({});
    } else {
      run_ranks(layout.ranks, body);
    }
    return read_metrics(scratch / "logs/metrics.jsonl");
  }
  std::string saving(const std::string& name, const std::string& more = "") const {
    return "checkpoint.save=" + (scratch / name) + " " + more + " ";
  }
  const Scratch scratch;
  fs::path checkpoint;
};

TEST_F(AsyncSave, WritesTheBytesOfASaveAtOnce) {
  const QuietLog quiet;
  for (const char* layout : {"one", "tp2_sp", "zero3_hybrid", "tp4_sp_shared_heads"}) {
    for (const char* type : {"fp32", "bf16"}) {
      const std::string keys =
          fmt::format("dtype={} checkpoint.save_interval=1 checkpoint.keep=0 ", type);
      train(layout, saving("now") + keys);
      train(layout, saving("later", "checkpoint.async_save=true") + keys);
      for (int64_t i = 1; i <= 4; ++i) {
        const fs::path now = fs::path(scratch / "now") / step_name(i);
        const fs::path later = fs::path(scratch / "later") / step_name(i);
        EXPECT_THAT(checkpoint::verify(later).faults, IsEmpty()) << layout << i;
        size_t files = 0;
        for (const auto& entry : fs::directory_iterator(now)) {
          const std::string name = entry.path().filename().string();
          if (!name.ends_with(".safetensors")) continue;
          ++files;
          EXPECT_EQ(content_of(entry.path()), content_of(later / name))
              << layout << " " << name << i;
        }
        EXPECT_GE(files, 2u);
      }
      fs::remove_all(scratch / "now");
      fs::remove_all(scratch / "later");
    }
  }
}

TEST_F(AsyncSave, ShowsItsStatesInTheLogAndTheMetrics) {
  std::vector<Json> steps;
  const std::string log = log_of([&] {
    steps = train("dp2", saving("run", "checkpoint.async_save=true checkpoint.save_interval=2"));
  });
  EXPECT_THAT(log, AllOf(HasSubstr("checkpoint of iteration 2 queued: training waited"),
                         HasSubstr("checkpoint of iteration 2 written after"),
                         HasSubstr("step_00000002 ("), HasSubstr("durable after"),
                         HasSubstr("checkpoint of iteration 4 queued")));
  EXPECT_EQ(checkpoint, fs::path(scratch / "run") / step_name(4)) << "the end waits for the last";
  std::vector<std::string> states;
  for (const Json& step : steps) {
    for (const Json& event : step.value("checkpoints", Json::array())) {
      EXPECT_EQ(event.at("iteration"), 2);
      EXPECT_GT(event.at("bytes"), 0);
      EXPECT_GE(event.at("seconds"), 0.0);
      states.push_back(event.at("state"));
    }
  }
  EXPECT_EQ(states.at(0), "queued");
  EXPECT_LE(states.size(), 3u);
}

TEST_F(AsyncSave, WhatDoesNotFitIntoStagingIsWrittenFirst) {
  const std::string large = "model.hidden_size=256 model.ffn_hidden_size=1024 "
                            "checkpoint.save_interval=2 dtype=bf16 ";
  const std::string log = log_of([&] {
    train("one", saving("later", "checkpoint.async_save=true checkpoint.staging_limit=1") + large);
  });
  EXPECT_THAT(log, HasSubstr("did not fit into the staging memory of 1.0 MiB and were written "
                             "before training continued"));
  train("one", saving("now") + large);
  for (const char* file :
       {"model_00000_of_00001.safetensors", "optimizer_00000_of_00001.safetensors"})
    EXPECT_EQ(content_of(fs::path(scratch / "now") / step_name(4) / file),
              content_of(fs::path(scratch / "later") / step_name(4) / file));
}

TEST_F(AsyncSave, AFullDiskLosesNothingAndStopsOrNotAsAsked) {
  for (const char* layout : {"one", "dp2"}) {
    for (const char* async : {"true", "false"}) {
      SCOPED_TRACE(fmt::format("{} async={}", layout, async));
      fs::remove_all(scratch / "run");
      const std::string keys =
          saving("run", fmt::format("checkpoint.async_save={} checkpoint.save_interval=1", async));
      train(layout, keys + "train.exit_interval=2");
      const std::string before = content_of(scratch / "run/latest");
      {
        const FullDisk full(20'000);
        const std::string error = error_of([&] {
          const QuietLog quiet;
          train(layout, keys + "checkpoint.load=auto");
        });
        EXPECT_THAT(error, AllOf(HasSubstr("the checkpoint of iteration 3 was not saved"),
                                 HasSubstr("File too large"), HasSubstr("safetensors"),
                                 HasSubstr("try: checkpoint.on_error=continue")));
        std::vector<Json> steps;
        const std::string log = log_of([&] {
          steps = train(layout, keys + "checkpoint.load=auto checkpoint.on_error=continue");
        });
        EXPECT_THAT(log, AllOf(HasSubstr("iteration 3 was not saved"),
                               Not(HasSubstr("iteration 4 was not saved"))))
            << "the last failure is in the report";
        ASSERT_EQ(steps.size(), 2u);
        EXPECT_EQ(checkpoint, fs::path());
      }
      EXPECT_EQ(content_of(scratch / "run/latest"), before);
      EXPECT_THAT(checkpoint::verify(fs::path(scratch / "run") / step_name(2)).faults, IsEmpty());
      for (const auto& entry : fs::directory_iterator(scratch / "run"))
        EXPECT_EQ(entry.path().string().find(".tmp-"), std::string::npos) << entry.path();
      train(layout, keys + "checkpoint.load=auto");
      EXPECT_THAT(checkpoint::verify(fs::path(scratch / "run") / step_name(4)).faults, IsEmpty());
    }
  }
}

TEST_F(AsyncSave, LostShardsAreRebuiltFromParityFiles) {
  const QuietLog quiet;
  train("dp2", saving("run", "checkpoint.async_save=true checkpoint.parity=2"));
  for (const char* lost :
       {"model_00001_of_00002.safetensors", "optimizer_00000_of_00002.safetensors"})
    fs::remove(checkpoint / lost);
  EXPECT_THAT(error_of([&] { train("one", saving("run", "checkpoint.load=auto")); }),
              HasSubstr("try: pentatron checkpoint repair"));
  EXPECT_EQ(checkpoint::repair_checkpoint(checkpoint).repaired.size(), 2u);
  EXPECT_THAT(checkpoint::verify(checkpoint).faults, IsEmpty());
  train("one", saving("run", "checkpoint.load=auto"));
}

TEST_F(AsyncSave, AFolderThatIsGoneIsMadeAnew) {
  const std::string keys = saving("run", "checkpoint.async_save=true checkpoint.save_interval=1");
  const trainer::Config config =
      layout_config("gpt2", keys + "train.train_iters=3 train.eval_interval=0", 1, scratch.path);
  trainer::Trainer trainer(config, {});
  fs::remove_all(scratch / "run");
  EXPECT_EQ(trainer.run().checkpoint, fs::path(scratch / "run") / step_name(3));
}

} // namespace
} // namespace pentatron::test
