// The verbs for saved runs, as a user runs them.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "pentatron/base/json.h"
#include "tests/cli/program_folder.h"

namespace pentatron {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class CheckpointVerbs : public test::ProgramFolder {
 protected:
  CheckpointVerbs() { train("saved --ranks 2 ddp.zero_stage=1", ""); }

  std::string run(const std::string& arguments, int expected_status = 0) const {
    return ProgramFolder::run(arguments + " 2>&1", expected_status);
  }
  void train(const std::string& folder_and_flags, const std::string& more) {
    run("train dataset.type=mock model.num_layers=1 model.hidden_size=32 "
        "model.num_attention_heads=2 model.vocab_size=64 train.seq_length=16 "
        "train.micro_batch_size=1 train.global_batch_size=4 train.train_iters=3 "
        "train.num_threads=1 logger.plot=false logger.tensorboard=false "
        "checkpoint.save_interval=1 checkpoint.keep=0 checkpoint.save=" +
        folder_and_flags + " " + more);
  }
};

TEST_F(CheckpointVerbs, ShowCheckAndComparePartsOfTwoRanks) {
  const Json shown = parse_json(run("checkpoint inspect saved --json"), "inspect");
  EXPECT_EQ(shown.at("iteration"), 3);
  EXPECT_EQ(shown.at("files").size(), 4u); // model and optimizer of two ranks
  EXPECT_THAT(run("checkpoint verify saved"),
              AllOf(HasSubstr("step_00000003"), HasSubstr("all checksums match")));
  EXPECT_THAT(run("checkpoint verify saved/step_00000001"), HasSubstr("step_00000001"));

  train("one", ""); // the same training on one rank: the same numbers to rounding
  EXPECT_THAT(run("checkpoint diff saved saved/step_00000003"), Not(HasSubstr("differ by")));
  run("checkpoint diff saved/step_00000001 saved/step_00000003", 1);
  train("two", "logger.dir=log_two"); // the same run elsewhere
  EXPECT_THAT(run("checkpoint diff one two"), Not(HasSubstr("configurations differ")));
  train("three", "optimizer.lr=0.5 train.train_iters=3");
  EXPECT_THAT(run("checkpoint diff one three", 1),
              HasSubstr("the configurations differ in optimizer.lr\n"));
  run("train checkpoint.load=saved dataset.type=mock model.num_layers=1 model.hidden_size=32 "
      "model.num_attention_heads=2 model.vocab_size=64 train.seq_length=16 "
      "train.micro_batch_size=1 train.global_batch_size=4 train.train_iters=4 "
      "train.num_threads=1 logger.dir=log2 logger.plot=false logger.tensorboard=false");
}

TEST_F(CheckpointVerbs, InspectFitsAScreen) {
  const std::string page = run("checkpoint inspect saved");
  EXPECT_LE(std::count(page.begin(), page.end(), '\n'), 40) << page;
  for (const char* part : {"step_00000003", "model        1 layer, hidden size 32",
                           "iteration 3 of 3, 12 samples, 192 tokens", "layers.*.",
                           "optimizer state", "exp_avg", "--all"})
    EXPECT_THAT(page, HasSubstr(part));
  const std::string all = run("checkpoint inspect saved --all");
  for (const char* part : {"layers.0.", "model_00001_of_00002.safetensors"})
    EXPECT_THAT(all, HasSubstr(part));
  EXPECT_THAT(page, Not(HasSubstr("layers.0.")));
  EXPECT_THAT(run("checkpoint inspect saved --all --json 2>&1", 2),
              HasSubstr("--json cannot be used with --all\n  try: remove --all"));
}

TEST_F(CheckpointVerbs, VerifyNamesFileAndTensorOfAFlippedBit) {
  const fs::path file = folder / "saved/step_00000003/model_00001_of_00002.safetensors";
  std::fstream out(file, std::ios::in | std::ios::out | std::ios::binary);
  out.seekg(-20, std::ios::end);
  const int byte = out.get();
  out.seekp(-20, std::ios::end);
  out.put(static_cast<char>(byte ^ 4));
  out.close();
  EXPECT_THAT(run("checkpoint verify saved", 1),
              AllOf(HasSubstr("model_00001_of_00002.safetensors"), HasSubstr("corrupted")));
}

TEST_F(CheckpointVerbs, RepairRebuildsALostShard) {
  train("safe --ranks 2", "checkpoint.parity=1 train.train_iters=1");
  EXPECT_THAT(run("checkpoint repair safe"), HasSubstr("nothing to repair"));
  const fs::path step = folder / "safe/step_00000001";
  fs::remove(step / "model_00001_of_00002.safetensors");
  EXPECT_THAT(run("checkpoint verify safe", 1),
              HasSubstr("try: pentatron checkpoint repair safe/step_00000001"));
  EXPECT_THAT(run("checkpoint repair safe"), HasSubstr("rebuilt model_00001_of_00002.safetensors"));
  EXPECT_THAT(run("checkpoint verify safe"), HasSubstr("all checksums match"));
  fs::remove(step / "manifest.json"); // of which a copy is there
  for (const char* of : {"safe", "safe/step_00000001"})
    EXPECT_THAT(run(std::string("checkpoint verify ") + of, 1),
                HasSubstr("try: pentatron checkpoint repair safe/step_00000001"));
  EXPECT_THAT(run("checkpoint repair safe/step_00000001"), HasSubstr("rebuilt manifest.json"));
  EXPECT_THAT(run("checkpoint verify safe"), HasSubstr("all checksums match"));
  for (const char* shard : {"model_00000_of_00002", "optimizer_00001_of_00002"})
    fs::remove(step / (std::string(shard) + ".safetensors"));
  EXPECT_THAT(run("checkpoint repair safe", 1),
              AllOf(HasSubstr("cannot be repaired"), Not(HasSubstr("try:"))));
  EXPECT_THAT(run("checkpoint verify safe", 1), Not(HasSubstr("repair")));
  fs::copy(folder / "saved/step_00000003", folder / "safe/step_00000003",
           fs::copy_options::recursive);
  for (const char* command : {"repair", "verify"})
    EXPECT_THAT(run(std::string("checkpoint ") + command + " safe/step_00000001", 1),
                HasSubstr("try: safe/step_00000003, which is intact"));
}

TEST_F(CheckpointVerbs, PruneKeepsWhatItIsTold) {
  EXPECT_THAT(run("checkpoint prune saved --keep 1 --dry-run"),
              AllOf(HasSubstr("would remove step_00000001"), HasSubstr("kept step_00000003")));
  EXPECT_TRUE(fs::exists(folder / "saved/step_00000001"));
  run("checkpoint prune saved --keep 1 --keep-every 2");
  EXPECT_FALSE(fs::exists(folder / "saved/step_00000001"));
  EXPECT_TRUE(fs::exists(folder / "saved/step_00000002"));
  EXPECT_THAT(run("checkpoint verify nowhere", 1), HasSubstr("nowhere does not exist"));
  EXPECT_THAT(run("checkpoint prune nowhere --keep 1", 1), HasSubstr("nowhere does not exist"));
}

TEST_F(CheckpointVerbs, AnExportIsNoCheckpoint) {
  fs::create_directories(folder / "saved/hf/step_00000003");
  std::ofstream(folder / "saved/hf/step_00000003/config.json") << "{}";
  for (const char* command : {"inspect", "verify", "repair"})
    for (const char* path : {"saved/hf", "saved/hf/step_00000003"})
      EXPECT_THAT(run(std::string("checkpoint ") + command + " " + path, 1),
                  AllOf(HasSubstr("is exported for other programs"), HasSubstr("try: saved\n")));
}

TEST_F(CheckpointVerbs, TheCheckpointsThatAreMeantAreProposed) {
  train("a/checkpoints", "train.train_iters=2 checkpoint.save_interval=1 logger.dir=a");
  train("elsewhere", "train.train_iters=1 logger.dir=b");
  train("steps/x", "train.train_iters=2 checkpoint.save_interval=1");
  const auto tries = [&](const std::string& command, const std::string& remedy) {
    EXPECT_THAT(run(command, 1), testing::EndsWith("\n  try: " + remedy + "\n")) << command;
  };
  for (const char* run_folder : {"a", "a/"})
    for (const char* command : {"checkpoint verify ", "checkpoint inspect "})
      tries(std::string(command) + run_folder, "a/checkpoints");
  tries("checkpoint prune a --keep 1", "a/checkpoints");
  tries("generate a --tokens 1", "a/checkpoints");
  tries("generate b --tokens 1", "elsewhere");
  tries("checkpoint verify b", "elsewhere");
  const std::string both = "steps/x/step_00000002 or steps/x/step_00000001";
  for (const char* command :
       {"checkpoint verify steps/x/step_5", "generate steps/x/step_00000009 --tokens 1"})
    tries(command, both);
  // A name like ORG/NAME is no model to download where checkpoints lie beside it.
  tries("generate elsewhere/step_00000009 --tokens 1", "elsewhere/step_00000001");
  EXPECT_THAT(run("generate nowhere/step_00000009 --tokens 1", 1), HasSubstr("hf download"));
  const std::string start = "train dataset.type=mock model.num_layers=1 kernels=order "
                            "logger.peak_tflops=1 checkpoint.load=";
  tries(start + "a", "checkpoint.load=a/checkpoints");
  tries(start + "b", "checkpoint.load=elsewhere");
  tries(start + "steps/x/step_5", "checkpoint.load=steps/x/step_00000002 or "
                                  "checkpoint.load=steps/x/step_00000001");
}

} // namespace
} // namespace pentatron
