// What a run needs is shown before it begins, and what this machine does not have is refused then.
#include <filesystem>
#include <fstream>
#include <string>
#include <tuple>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/cli/program_folder.h"

namespace pentatron {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class Limits : public test::ProgramFolder {
 protected:
  /// In an address space in which no refusal is an allocator's.
  std::string train(const std::string& keys, int status) const {
    return run("train dataset.type=mock train.num_threads=1 logger.peak_tflops=1 kernels=order " +
                   keys + " 2>&1",
               status);
  }
};

TEST_F(Limits, ADryRunShowsWhatTheRunNeedsAndWritesNothing) {
  for (const char* ranks : {"", "--ranks 2 ", "--ranks 2 --backend sockets "}) {
    const std::string out =
        train(std::string(ranks) +
                  "--dry-run model.preset=gpt2_124m train.train_iters=100 logger.dir=log "
                  "checkpoint.save=ck train.global_batch_size=8 train.seq_length=1024",
              0);
    EXPECT_THAT(out, AllOf(HasSubstr("model        124M parameters"), HasSubstr("optimizer "),
                           HasSubstr("free"), HasSubstr("100 iterations, 819K tokens"),
                           Not(HasSubstr("ETA"))));
  }
  EXPECT_TRUE(fs::is_empty(folder));
}

TEST_F(Limits, ADryRunOpensWhatTheRunReadsAndLooksAtItsFolders) {
  std::ofstream(folder / "text.jsonl") << "{\"text\": \"the loss falls slowly, then it rises\"}\n";
  const std::string tiny =
      "train model.num_layers=1 model.hidden_size=32 model.num_attention_heads=2 "
      "train.seq_length=8 train.train_iters=1 train.micro_batch_size=1 train.global_batch_size=1 "
      "train.num_threads=1 logger.peak_tflops=1 kernels=order dataset.path=text.jsonl "
      "dataset.split=1 logger.dir=log checkpoint.save=log/ck ";
  EXPECT_THAT(run(tiny + "--dry-run 2>&1"),
              AllOf(HasSubstr("data: 1 file"), HasSubstr("nothing was written")));
  EXPECT_FALSE(fs::exists(folder / "log"));
  for (const auto& [keys, status, text] :
       {std::tuple{"dataset.path=none.jsonl", 1, "none.jsonl"},
        {"tokenizer.path=none.json", 1, "none.json"},
        {"checkpoint.load=none", 1, "checkpoint.load=none"},
        {"logger.dir=text.jsonl/x", 2, "text.jsonl/x is not a writable folder"},
        {"logger.dir=/proc/x", 2,
         "logger.dir=/proc/x is not a writable folder: /proc is not writable"},
        {"checkpoint.save=/proc/x", 2, "checkpoint.save=/proc/x is not a writable folder"}})
    EXPECT_THAT(run(tiny + "--dry-run 2>&1 " + keys, status), HasSubstr(text));
  run(tiny + "2>&1");
  EXPECT_THAT(run(tiny + "--dry-run 2>&1", 2),
              HasSubstr("contains the checkpoints of another run"));
  const std::string resumes = tiny + "--dry-run checkpoint.load=auto train.train_iters=2 2>&1 ";
  EXPECT_THAT(run(resumes),
              HasSubstr("log/ck/step_00000001 (not its checksums); nothing was written"));
  EXPECT_THAT(run(resumes + "model.hidden_size=64", 2), HasSubstr("model.hidden_size"));
  fs::resize_file(folder / "log/ck/step_00000001/manifest.json", 10);
  EXPECT_THAT(run(resumes, 1), HasSubstr("contains no intact checkpoint"));
}

TEST_F(Limits, ADryRunRefusesAndTellsWhatTheRunDoes) {
  const auto documents = [&](const std::string& text) {
    std::ofstream(folder / "text.jsonl") << "{\"text\": \"" + text + "\"}\n";
  };
  documents("the loss falls slowly, then it rises");
  const std::string tiny =
      "train model.num_layers=1 model.hidden_size=32 model.num_attention_heads=2 "
      "model.vocab_size=300 train.seq_length=8 train.train_iters=2 train.micro_batch_size=1 "
      "train.global_batch_size=1 train.num_threads=1 logger.peak_tflops=1 kernels=order "
      "dataset.path=text.jsonl dataset.split=1 logger.dir=log checkpoint.save=ck ";
  run(tiny + "train.train_iters=1 2>&1");
  fs::copy(folder / "ck", folder / "old", fs::copy_options::recursive);
  // Both say the same, with the same status.
  for (const auto& [keys, status, text] :
       {std::tuple{"checkpoint.load=auto dataset.type=mock dataset.path= tokenizer.type=null "
                   "tokenizer.vocab_size=256",
                   2, "was trained with a different tokenizer (bytes instead of null:256)"},
        {"checkpoint.load=auto ddp.zero_stage=1", 0, "ddp.zero_stage=1 has no effect"},
        {"checkpoint.load=auto seed=5", 0, "data settings have changed since ck/step_00000001"},
        {"checkpoint.load=old checkpoint.finetune=true checkpoint.save=b logger.dir=lb "
         "model.hidden_size=64",
         1, "does not match the model of this run"},
        {"checkpoint.load=old checkpoint.finetune=true checkpoint.save=c logger.dir=lc "
         "model.num_layers=2",
         1, "is not in the checkpoint"}}) {
    SCOPED_TRACE(keys);
    EXPECT_THAT(run(tiny + keys + " --dry-run 2>&1", status), HasSubstr(text));
    EXPECT_THAT(run(tiny + keys + " 2>&1", status), HasSubstr(text));
    for (const char* made : {"ck", "log"}) fs::remove_all(folder / made);
    fs::copy(folder / "old", folder / "ck", fs::copy_options::recursive);
  }
  documents("another text of another length");
  const std::string resumes = tiny + "checkpoint.load=auto ";
  const std::string changed = "the training data has changed since ck/step_00000001 was saved: ";
  EXPECT_THAT(run(resumes + "--dry-run 2>&1"), HasSubstr(changed));
  EXPECT_THAT(run(resumes + "seed=5 --dry-run 2>&1"),
              AllOf(HasSubstr(changed), HasSubstr("data settings have changed")))
      << "both are told";
  const std::string out = run(resumes + "--dry-run 2>&1");
  EXPECT_LT(out.find("model        "), out.find(changed)) << "in the order of the work";
}

TEST_F(Limits, WhatCannotFitIsRefusedBeforeAnythingIsWritten) {
  for (const auto& [keys, tries] :
       {std::pair{"model.preset=gpt2_124m train.micro_batch_size=1000000 "
                  "train.global_batch_size=1000000",
                  "try: train.global_batch_size="},
        {"model.hidden_size=100000 model.num_attention_heads=100", "try: "},
        {"model.preset=llama3.1_405b", "try: "}}) {
    const std::string out = train(std::string(keys) + " logger.dir=log checkpoint.save=ck", 2);
    EXPECT_THAT(out, AllOf(HasSubstr("error: the run needs about "), HasSubstr(tries)));
    EXPECT_TRUE(fs::is_empty(folder));
    EXPECT_THAT(train(std::string(keys) + " --dry-run", 2), HasSubstr("error: the run needs"));
    train(std::string(keys) + " --dry-run train.check_memory=false", 0);
  }
}

TEST_F(Limits, WhatATryAdvisesIsNotRefused) {
  std::ofstream text(folder / "text.jsonl");
  for (int i = 0; i < 60; ++i) text << "{\"text\": \"the loss falls slowly, then it rises\"}\n";
  text.close();
  for (const char* first :
       {"train.seq_length=1000000000",
        "train.seq_length=100000000 model.max_position_embeddings=100000000",
        "train.seq_length=100000000 model.max_position_embeddings=100000000 "
        "model.position_embedding_type=learned_absolute",
        "train.micro_batch_size=1000000 train.global_batch_size=2", "model.vocab_size=1000000000",
        "model.vocab_size=1000000000 dataset.type=text dataset.path=text.jsonl",
        "model.hidden_size=3000000000", "train.seq_length=3000000000",
        "train.micro_batch_size=3000000000"}) {
    SCOPED_TRACE(first);
    const std::string keys = first;
    const std::string out = run("train dataset.type=mock train.num_threads=1 kernels=order "
                                "logger.peak_tflops=1 --dry-run " +
                                    keys + " 2>&1",
                                2);
    const size_t at = out.find("  try: ");
    ASSERT_NE(at, std::string::npos) << out;
    std::string remedy = out.substr(at + 7);
    remedy = remedy.substr(0, std::min(remedy.find('\n'), remedy.find(", or ")));
    train(keys + " train.train_iters=1 --dry-run " + remedy, 0);
  }
}

TEST_F(Limits, ARunThatEndsEarlySaysWhy) {
  const std::string tiny = "model.num_layers=1 model.hidden_size=32 model.num_attention_heads=2 "
                           "train.seq_length=16 train.train_iters=6 ";
  EXPECT_THAT(train(tiny + "train.exit_interval=2", 0),
              HasSubstr("stopped by train.exit_interval=2 after iteration 2; not saved, because "
                        "checkpoint.save is empty\n"));
  EXPECT_THAT(train(tiny + "train.exit_duration_in_mins=1e-9 checkpoint.save=ck", 0),
              HasSubstr("stopped by train.exit_duration_in_mins=1e-09 after iteration 1\n"));
  EXPECT_THAT(train(tiny, 0), Not(HasSubstr("stopped")));
}

TEST_F(Limits, ANumberThatIsNoneHasNoSign) {
  const std::string out = train(
      "model.num_layers=1 model.hidden_size=32 model.num_attention_heads=2 train.seq_length=16 "
      "train.train_iters=6 optimizer.lr=1e30 train.on_nan=skip logger.log_interval=1",
      0);
  EXPECT_THAT(out, AllOf(HasSubstr("gradient norm nan is not finite, first seen in "),
                         HasSubstr("grad norm nan"), Not(HasSubstr("-nan"))));
}

TEST_F(Limits, AStartThatFailsLeavesNoRunJson) {
  const std::string tiny = "model.num_layers=1 model.hidden_size=32 model.num_attention_heads=2 "
                           "train.seq_length=16 train.train_iters=1 logger.dir=log ";
  EXPECT_THAT(train(tiny + "dataset.type=text dataset.path=none.jsonl", 1),
              HasSubstr("none.jsonl"));
  EXPECT_THAT(train(tiny + "checkpoint.load=none", 1),
              HasSubstr("checkpoint.load=none does not exist"));
  EXPECT_FALSE(std::filesystem::exists(folder / "log/run.json"));
  train(tiny, 0);
  EXPECT_TRUE(std::filesystem::exists(folder / "log/run.json"));
}

TEST_F(Limits, ALostCheckpointIsToldWithOneRemedy) {
  const std::string tiny = "model.num_layers=1 model.hidden_size=32 model.num_attention_heads=2 "
                           "train.seq_length=16 train.train_iters=2 checkpoint.save_interval=1 "
                           "checkpoint.save=ck checkpoint.on_error=";
  for (const char* on_error : {"stop", "continue"}) {
    const std::string out =
        run("train dataset.type=mock train.num_threads=1 logger.peak_tflops=1 kernels=order " +
                tiny + on_error + " 2>&1",
            1, "trap '' XFSZ; ulimit -f 8; ");
    const size_t at = out.rfind("error: ");
    ASSERT_NE(at, std::string::npos) << out;
    const std::string error = out.substr(at);
    EXPECT_THAT(error, HasSubstr("was not saved"));
    EXPECT_EQ(error.find("  try: "), error.rfind("  try: ")) << error;
    EXPECT_NE(error.find("  try: "), std::string::npos) << error;
    if (on_error == std::string("stop")) {
      EXPECT_EQ(out.find("error: "), at) << out;
    }
  }
}

TEST_F(Limits, OnAFullDiskEveryIncompleteFileIsNamedAndNoOtherIsShown) {
  const std::string out =
      run("train dataset.type=mock train.num_threads=1 logger.peak_tflops=1 kernels=order "
          "model.num_layers=1 model.hidden_size=32 model.num_attention_heads=2 "
          "train.seq_length=16 train.train_iters=3 logger.dir=log 2>&1",
          0, "trap '' XFSZ; ulimit -f 0; ");
  for (const char* at : {"training continues, and ", "the run ends with incomplete files in log: "})
    EXPECT_THAT(out.substr(std::min(out.size(), out.find(at))),
                AllOf(HasSubstr("config.yaml, kernels.json, "), HasSubstr("run.json, tensorboard"),
                      HasSubstr("metrics.jsonl")));
  EXPECT_FALSE(fs::exists(folder / "log/loss.svg"));
  EXPECT_THAT(out, Not(HasSubstr("plot         ")));
}

TEST_F(Limits, ALengthThatDoesNotFitIntoANumberIsRefused) {
  for (const char* samples : {"9223372036854775807", "1000000000000001"})
    EXPECT_THAT(train(std::string("--dry-run train.train_samples=") + samples, 2),
                HasSubstr("train.train_samples="));
}

TEST_F(Limits, TooManyThreadsAreRefused) {
  EXPECT_THAT(train("--ranks 100000 --backend sockets", 2),
              AllOf(HasSubstr("--ranks 100000 is more than the 4096 processes"),
                    HasSubstr("\n  try: --ranks ")));
  EXPECT_THAT(train("--ranks 65536", 2),
              AllOf(HasSubstr("error: --ranks 65536 is more than the 1024 threads"),
                    HasSubstr("try: --ranks ")));
}

TEST_F(Limits, MoreRanksThanThisMachineStartsCanBePlanned) {
  EXPECT_THAT(train("--dry-run --ranks 6144 train.check_memory=false train.global_batch_size=6144 "
                    "train.micro_batch_size=1",
                    0),
              AllOf(HasSubstr("memory       about "), HasSubstr("nothing was written")));
}

TEST_F(Limits, TheTableAndTheTimeThatIsLeftAreInTheLog) {
  const std::string out =
      train("model.num_layers=1 model.hidden_size=32 model.num_attention_heads=2 "
            "train.seq_length=16 train.train_iters=6 train.eval_interval=2 dataset.split=100,0,0",
            0);
  EXPECT_THAT(out, AllOf(HasSubstr("memory       about "),
                         HasSubstr("; the remaining 3 iterations take "),
                         HasSubstr("the trained model will not be saved")));
  EXPECT_EQ(out.find("will not be saved"), out.rfind("will not be saved"));
}

} // namespace
} // namespace pentatron
