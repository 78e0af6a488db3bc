// What the model writes during training: where it is shown, and that it is the same in every
// layout and in a resumed run.
#include <filesystem>
#include <string>
#include <vector>

#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "pentatron/base/error.h"
#include "tests/support/quiet_log.h"
#include "tests/support/ranks.h"
#include "tests/trainer/tiny_run.h"

namespace pentatron::trainer {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class SampleRun : public testing::Test {
 protected:
  SampleRun() : data_(test::write_documents(scratch_ / "documents.jsonl", 60)) {}

  std::vector<Json> run(const std::vector<std::string>& keys, int ranks = 1) {
    const test::QuietLog quiet;
    const std::string folder = scratch_ / fmt::format("run{}", ++runs_);
    std::vector<std::string> all = {
        "dtype=fp64", "logger.dir=" + folder, "logger.sample_tokens=9", "train.seq_length=32",
        R"(logger.sample_prompts=["", "The loss", "{\"prompt\": \"Q\"}"])"};
    all.insert(all.end(), keys.begin(), keys.end());
    const Config config = test::tiny(data_, all, ranks);
    test::run_ranks(ranks, [&](const comm::Group& world) { Trainer(config, world).run(); });
    return test::read_metrics((fs::path(folder) / "samples.jsonl").string());
  }

  test::Scratch scratch_;
  std::string data_;
  int runs_ = 0;
};

TEST_F(SampleRun, WritesAtTheEndOrAtAnInterval) {
  const std::vector<Json> last = run({});
  ASSERT_EQ(last.size(), 3u);
  EXPECT_EQ(last[1]["prompt"], "The loss");
  EXPECT_EQ(last[1]["iteration"], 3);
  EXPECT_EQ(last[2]["sample"], 2);
  EXPECT_NE(last[0]["text"], last[1]["text"]);
  const std::vector<Json> often = run({"logger.sample_interval=1"});
  ASSERT_EQ(often.size(), 9u);
  EXPECT_EQ(often[8], last[2]);
  const std::vector<Json> greedy = run({"logger.sample_temperature=0"}),
                          again = run({"logger.sample_temperature=0", "seed=1234"});
  EXPECT_EQ(greedy, again);
  EXPECT_NE(greedy, last);
}

TEST_F(SampleRun, IsTheSameInEveryLayout) {
  const std::vector<Json> alone = run({});
  const std::vector<std::pair<int, std::vector<std::string>>> layouts = {
      {2, {"ddp.zero_stage=3"}},
      {2, {"parallel.tensor_model_parallel_size=2", "parallel.sequence_parallel=true"}},
      {4, {"parallel.pipeline_model_parallel_size=2", "ddp.zero_stage=1"}}};
  for (const auto& [ranks, keys] : layouts)
    EXPECT_EQ(run(keys, ranks), alone) << fmt::format("{}", fmt::join(keys, " "));
}

/// Cached latents are multiplied with the weight that has the adapter.
TEST_F(SampleRun, AdaptersOfLatentsWriteWhatTheMergedModelWrites) {
  for (const char* type : {"lora", "dora"}) {
    const std::string folder = scratch_ / fmt::format("{}/checkpoints", type);
    std::vector<std::string> keys = {"model.multi_latent_attention=true",
                                     "model.kv_lora_rank=16",
                                     "model.qk_head_dim=8",
                                     "model.qk_pos_emb_head_dim=4",
                                     "model.v_head_dim=8",
                                     "model.position_embedding_type=rope",
                                     "logger.sample_temperature=0",
                                     "train.train_iters=6"};
    const std::vector<Json> plain = run(keys);
    keys.insert(keys.end(), {"checkpoint.save=" + (scratch_ / "base"), "checkpoint.load=auto"});
    run(keys);
    keys.resize(keys.size() - 2);
    keys.insert(keys.end(), {"checkpoint.load=" + (scratch_ / "base"), "checkpoint.finetune=true",
                             "checkpoint.save=" + folder, fmt::format("peft.type={}", type),
                             "peft.target_modules=[kv_b]", "optimizer.lr=0.3"});
    const std::vector<Json> adapted = run(keys);
    EXPECT_NE(adapted, plain) << type;
    keys.resize(keys.size() - 6);
    keys.insert(keys.end(), {"checkpoint.load=" + folder, "checkpoint.finetune=true",
                             "optimizer.lr=1e-30", "optimizer.min_lr=0"});
    EXPECT_EQ(run(keys), adapted) << type;
  }
}

TEST_F(SampleRun, WrongPromptsAreErrorsBeforeTheFirstStep) {
  EXPECT_THAT(test::error_of([&] { run({R"(logger.sample_prompts=["{\"a\": 1}"])"}); }),
              HasSubstr("which is not an example"));
  EXPECT_THAT(test::error_of([&] { run({"logger.sample_tokens=0"}); }),
              HasSubstr("logger.sample_tokens"));
}

} // namespace
} // namespace pentatron::trainer
