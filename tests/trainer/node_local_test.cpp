// Checkpoints on disks of which each machine has its own. Machines are folders here: every rank's
// thread has a working folder, and checkpoint.save is relative to it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sched.h>
#include <unistd.h>

#include "pentatron/checkpoint/machines.h"
#include "pentatron/checkpoint/sharded/folders.h"
#include "pentatron/data/data_files.h"
#include "pentatron/trainer/kernel_choice.h"
#include "pentatron/trainer/run_files.h"
#include "tests/support/log_capture.h"
#include "tests/trainer/layout_runs.h"

namespace pentatron::test {
namespace {

namespace fs = std::filesystem;
using test::log_of;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

const std::string kTensorAndData = "parallel.tensor_model_parallel_size=2 ddp.zero_stage=1 ";
const std::string kPipeline = "parallel.pipeline_model_parallel_size=2 ";
const std::string kLocal = "checkpoint.node_local=true ";
const char* const kStep = "step_00000002";

class NodeLocal : public testing::Test {
 protected:
  NodeLocal() { write_documents(scratch / "documents.jsonl", 400); }

  fs::path machine(int number) const { return scratch / ("machine" + std::to_string(number)); }
  /// Trains with the rank r on machine machines[r]; returns the losses by iteration.
  std::map<int64_t, double> train(const std::vector<int>& machines, const std::string& keys) {
    fs::remove_all(scratch / "logs");
    const auto ranks = static_cast<int>(machines.size());
    const auto config =
        layout_config("gpt2", "train.eval_interval=0 checkpoint.save=run checkpoint.keep=0 " + keys,
                      ranks, scratch.path);
    run_ranks(ranks, [&](const comm::Group& world) {
      const fs::path here = machine(machines[static_cast<size_t>(world.rank())]);
      fs::create_directories(here);
      ASSERT_EQ(::unshare(CLONE_FS), 0); // this thread and those that it makes
      ASSERT_EQ(::chdir(here.c_str()), 0);
      const trainer::TrainReport report = trainer::Trainer(config, world).run();
      if (world.rank() == 0) unsaved = report.unsaved ? report.unsaved->text : "";
    });
    std::map<int64_t, double> losses;
    for (const Json& step : read_metrics(scratch / "logs/metrics.jsonl"))
      losses[step.at("iteration")] = step.at("loss");
    return losses;
  }
  /// The same on one disk, kept as `name`.
  void train_shared(const std::string& name, const std::string& keys) {
    train({9, 9, 9, 9}, keys);
    fs::rename(machine(9) / "run", scratch / name);
  }
  std::string error_of_training(const std::vector<int>& machines, const std::string& keys) {
    return error_of([&] { train(machines, keys); });
  }
  const Scratch scratch;
  std::string unsaved; ///< what the last training ended with
};

TEST_F(NodeLocal, AMachineKeepsTheFilesOfItsRanks) {
  const std::string keys = kTensorAndData + "train.train_iters=2 ";
  train_shared("shared", keys);
  const fs::path shared = fs::path(scratch / "shared") / kStep;
  for (const char* more : {"", "checkpoint.async_save=true"}) {
    train({0, 0, 1, 1}, keys + kLocal + more);
    for (const auto& entry : fs::directory_iterator(shared)) {
      const std::string name = entry.path().filename().string();
      if (name == "manifest.json") continue; // tells the configuration, which differs
      if (name == trainer::kKernelsFile || name == data::kDataFilesName)
        continue; // small files, on every machine
      const bool first = name.find("_00000_of") != std::string::npos ||
                         name.find("_00001_of") != std::string::npos;
      EXPECT_EQ(content_of(machine(first ? 0 : 1) / "run" / kStep / name), content_of(entry.path()))
          << name;
      EXPECT_FALSE(fs::exists(machine(first ? 1 : 0) / "run" / kStep / name)) << name;
    }
    EXPECT_EQ(content_of(machine(0) / "run" / kStep / "manifest.json"),
              content_of(machine(1) / "run" / kStep / "manifest.json"));
    for (const int m : {0, 1}) {
      EXPECT_EQ(content_of(machine(m) / "run/latest"), std::string(kStep) + "\n");
      fs::remove_all(machine(m));
    }
  }
}

TEST_F(NodeLocal, AnyLayoutOnAnyMachinesGoesOn) {
  const std::string begin = kTensorAndData + "train.train_iters=4 train.exit_interval=2 ";
  const std::string rest = kPipeline + "train.train_iters=4 checkpoint.load=";
  train_shared("shared", begin);
  const auto expected = train({9, 9, 9, 9}, rest + (scratch / "shared"));
  ASSERT_TRUE(expected.contains(4));
  train({0, 0, 1, 1}, begin + kLocal);
  std::map<int64_t, double> losses;
  const std::string log = log_of([&] {
    losses = train({0, 1, 2, 1}, rest + "run checkpoint.save=other " + kLocal);
  });
  EXPECT_EQ(losses, expected);
  EXPECT_THAT(log, HasSubstr("from other machines"));
  EXPECT_TRUE(fs::exists(machine(2) / "run" / kStep / "manifest.json")) << "a new machine";
  const std::string again = log_of([&] {
    EXPECT_EQ(train({0, 1, 2, 1}, rest + "run checkpoint.save=third " + kLocal), expected);
  });
  EXPECT_THAT(again, Not(HasSubstr("from other machines"))) << "they keep what they got";
}

TEST_F(NodeLocal, GoesBackToWhatIsWholeOnAllMachinesTogether) {
  const std::string keys = kTensorAndData + kLocal + "checkpoint.save_interval=2 ";
  const std::string on = keys + "checkpoint.load=auto train.train_iters=4";
  train({0, 0, 1, 1}, keys + "train.train_iters=4");
  const fs::path step = machine(1) / "run/step_00000004";
  const fs::path shard = step / "model_00002_of_00004.safetensors";
  std::string bytes = content_of(shard);
  bytes[bytes.size() / 2] ^= 1;
  std::ofstream(shard, std::ios::binary) << bytes;
  EXPECT_THAT(log_of([&] {
                train({0, 0, 1, 1}, on);
              }),
              AllOf(HasSubstr("step_00000004: on the machine of rank 2: "
                              "model_00002_of_00004.safetensors is corrupted"),
                    HasSubstr("resumed from run/step_00000002")));
  for (const int m : {0, 1})
    EXPECT_TRUE(fs::exists(machine(m) / "run/earlier-1/step_00000004/manifest.json")) << m;
  fs::remove(shard); // of the checkpoint that this run has written again
  EXPECT_THAT(
      log_of([&] {
        train({0, 0, 1, 1}, on);
      }),
      AllOf(HasSubstr("step_00000004: model_00002_of_00004.safetensors is missing on all machines"),
            HasSubstr("resumed from run/step_00000002")));
  fs::remove_all(machine(1));
  EXPECT_THAT(error_of_training({0, 0, 1, 1}, on),
              AllOf(HasSubstr("run contains no complete checkpoint on 2 machines"),
                    HasSubstr("model_00003_of_00004.safetensors")));
}

TEST_F(NodeLocal, AnotherMachineStandsInForADamagedCopy) {
  const std::string keys = kTensorAndData + kLocal + "checkpoint.save_interval=2 ";
  train({0, 0, 1, 1}, keys + "train.train_iters=4");
  const std::string shard = "run/step_00000004/model_00002_of_00004.safetensors";
  const std::string whole = content_of(machine(1) / shard);
  fs::copy_file(machine(1) / shard, machine(0) / shard); // as a rank there would have fetched it
  std::string bytes = whole;
  bytes[bytes.size() / 2] ^= 1;
  std::ofstream(machine(1) / shard, std::ios::binary) << bytes;
  EXPECT_THAT(log_of([&] {
                train({0, 0, 1, 1}, keys + "checkpoint.load=auto train.train_iters=5");
              }),
              AllOf(HasSubstr("model_00002_of_00004.safetensors is corrupted"),
                    HasSubstr("using the intact copy of another machine"),
                    HasSubstr("resumed from run/step_00000004")));
  EXPECT_TRUE(content_of(machine(1) / shard) == whole);
}

TEST_F(NodeLocal, KernelsComeFromAnotherMachineOrAreMissed) {
  const std::string keys = kTensorAndData + kLocal + "checkpoint.save_interval=2 ";
  train({0, 0, 1, 1}, keys + "train.train_iters=2");
  const auto kernels = [&](int number) { return machine(number) / "run" / kStep / "kernels.json"; };
  const std::string whole = content_of(kernels(0));
  const auto resumed = [&](int iterations) {
    return log_of([&] {
      train({0, 0, 1, 1},
            keys + fmt::format("checkpoint.load=run/{} train.train_iters={}", kStep, iterations));
    });
  };
  std::ofstream(kernels(0)) << "[" << whole.substr(1);
  EXPECT_THAT(resumed(3), AllOf(HasSubstr("using the intact copy of another machine"),
                                HasSubstr("resumed from run"), Not(HasSubstr("bit-exact"))));
  EXPECT_EQ(content_of(kernels(0)), whole);
  std::ofstream(kernels(0)) << whole.substr(1); // damaged here, lost there
  fs::remove(kernels(1));
  EXPECT_THAT(resumed(4), AllOf(HasSubstr("resume is not bit-exact"), HasSubstr("resumed from run"),
                                Not(HasSubstr("copy of another machine"))));
  EXPECT_FALSE(fs::exists(kernels(1))) << "nobody gets what is damaged";
}

TEST_F(NodeLocal, PassesOverWhatCouldNotBeReadThoughItLooksWhole) {
  train({0, 0, 1, 1}, kTensorAndData + kLocal + "checkpoint.save_interval=2 train.train_iters=4");
  const std::vector<int> machines = {0, 0, 1, 1};
  run_ranks(4, [&](const comm::Group& world) {
    ASSERT_EQ(::unshare(CLONE_FS), 0);
    ASSERT_EQ(::chdir(machine(machines[static_cast<size_t>(world.rank())]).c_str()), 0);
    EXPECT_EQ(checkpoint::find_on_machines("run", world)->folder, "run/step_00000004");
    const auto found = checkpoint::find_on_machines(
        "run", world, {{"run/step_00000004", "shard 2 was cut off while it was read"}});
    EXPECT_EQ(found->folder, fs::path("run") / kStep);
    EXPECT_THAT(found->passed_over, HasSubstr("shard 2 was cut off"));
  });
}

TEST_F(NodeLocal, AMachineThatCannotSaveStopsTheSaveOnAll) {
  const std::string keys = kTensorAndData + kLocal +
                           "train.train_iters=4 checkpoint.keep=1 "
                           "checkpoint.save_interval=2 ";
  train({0, 0, 1, 1}, keys + "train.exit_interval=2");
  const checkpoint::DirectoryLock lock(machine(1) / "run");
  train({0, 0, 1, 1}, keys + "checkpoint.load=auto checkpoint.on_error=continue");
  EXPECT_THAT(unsaved, HasSubstr("is in use by process"));
  for (const int m : {0, 1}) {
    std::vector<std::string> steps;
    for (const auto& found : checkpoint::checkpoints_in(machine(m) / "run"))
      steps.push_back(found.path.filename().string());
    EXPECT_THAT(steps, ElementsAre(kStep)) << "machine " << m;
  }
}

TEST_F(NodeLocal, NothingGoesBeforeAllMachinesHaveTheNewOne) {
  const std::string keys =
      kTensorAndData + kLocal + "checkpoint.keep=1 checkpoint.save_interval=2 ";
  train({0, 0, 1, 1}, keys + "train.train_iters=4 train.exit_interval=2");
  const fs::path latest = machine(1) / "run/latest";
  fs::remove(latest);
  fs::create_directories(latest / "in the way");
  train({0, 0, 1, 1},
        keys + "train.train_iters=4 checkpoint.load=auto checkpoint.on_error=continue");
  EXPECT_THAT(unsaved, HasSubstr("run/latest"));
  EXPECT_TRUE(fs::exists(machine(0) / "run" / kStep));
}

TEST_F(NodeLocal, OldCheckpointsGoOnEveryMachine) {
  train({0, 0, 1, 1}, kTensorAndData + kLocal +
                          "train.train_iters=4 checkpoint.keep=1 checkpoint.save_interval=1");
  for (const int m : {0, 1})
    EXPECT_EQ(checkpoint::checkpoints_in(machine(m) / "run").size(), 1u) << "machine " << m;
}

TEST_F(NodeLocal, IsAskedForWhereTheDiskIsNotShared) {
  EXPECT_THAT(error_of_training({0, 0, 1, 1}, kTensorAndData + "train.train_iters=1"),
              AllOf(HasSubstr("rank 2: this rank cannot see run"),
                    HasSubstr("checkpoint.node_local=true")));
  EXPECT_THAT(error_of_training({0}, kLocal + "checkpoint.parity=1"),
              AllOf(HasSubstr("checkpoint.parity=1, which needs all files"),
                    HasSubstr("checkpoint.parity=0")));
}

} // namespace
} // namespace pentatron::test
