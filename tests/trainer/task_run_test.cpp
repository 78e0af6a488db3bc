// Scores on tasks during training: where they are written, and that they are the same in every
// layout.
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

/// Lines of metrics.jsonl with scores, without what they share with other lines.
std::vector<Json> scores_of(const fs::path& metrics) {
  std::vector<Json> lines;
  for (Json& line : test::read_metrics(metrics.string()))
    if (line.contains("eval_yes_no_acc")) lines.push_back(std::move(line));
  return lines;
}

class TaskRun : public testing::Test {
 protected:
  TaskRun() : data_(test::write_documents(scratch_ / "documents.jsonl", 60)) {}

  std::vector<Json> run(const std::vector<std::string>& keys, int ranks = 1) {
    const test::QuietLog quiet;
    const std::string folder = scratch_ / fmt::format("run{}", ++runs_);
    const fs::path tasks = fs::path(PENTATRON_TEST_DATA) / "evaluation";
    std::vector<std::string> all = {
        "dtype=fp64",
        "logger.dir=" + folder,
        "eval.bootstrap_iters=10",
        "eval.limit=7",
        "train.seq_length=32",
        fmt::format("eval.tasks=[{0}/yes_no.yaml,{0}/cloze.yaml,{0}/sums.yaml]", tasks.string())};
    all.insert(all.end(), keys.begin(), keys.end());
    const Config config = test::tiny(data_, all, ranks);
    test::run_ranks(ranks, [&](const comm::Group& world) { Trainer(config, world).run(); });
    return scores_of(fs::path(folder) / "metrics.jsonl");
  }

  test::Scratch scratch_;
  std::string data_;
  int runs_ = 0;
};

TEST_F(TaskRun, ScoresTasksDuringTraining) {
  const std::vector<Json> last = run({});
  ASSERT_EQ(last.size(), 1u);
  EXPECT_EQ(last[0]["iteration"], 3);
  EXPECT_TRUE(last[0].contains("eval_cloze_perplexity_stderr"));
  EXPECT_TRUE(last[0].contains("eval_sums_exact_match,strict-match"));
  const std::vector<Json> often = run({"eval.interval=1"});
  ASSERT_EQ(often.size(), 3u);
  EXPECT_EQ(often[2]["eval_cloze_perplexity"], last[0]["eval_cloze_perplexity"]);
  EXPECT_NE(often[0]["eval_cloze_perplexity"], last[0]["eval_cloze_perplexity"]);
}

TEST_F(TaskRun, ScoresAreTheSameInEveryLayout) {
  const Json alone = run({}).at(0);
  const std::vector<std::pair<int, std::vector<std::string>>> layouts = {
      {2, {"ddp.zero_stage=3"}},
      {2, {"parallel.tensor_model_parallel_size=2", "parallel.sequence_parallel=true"}},
      {4, {"parallel.pipeline_model_parallel_size=2", "ddp.zero_stage=1", "eval.batch_tokens=40"}}};
  for (const auto& [ranks, keys] : layouts) {
    const Json scores = run(keys, ranks).at(0);
    for (const auto& [name, value] : alone.items())
      EXPECT_NEAR(scores[name].get<double>(), value.get<double>(),
                  1e-9 * std::abs(value.get<double>()))
          << name << " with " << fmt::format("{}", fmt::join(keys, " "));
  }
}

TEST_F(TaskRun, KeysThatCannotWorkAreRefused) {
  const auto error = [&](const std::vector<std::string>& keys, int ranks = 1) {
    return test::error_of([&] { test::tiny(data_, keys, ranks); });
  };
  EXPECT_THAT(error({"eval.interval=2"}), HasSubstr("no effect without eval.tasks"));
  EXPECT_THAT(error({"eval.tasks=[a.yaml]", "eval.max_length=64"}),
              HasSubstr("train.seq_length=16"));
  EXPECT_THAT(error({"eval.tasks=[a.yaml]", "parallel.context_parallel_size=2"}, 2),
              HasSubstr("context_parallel_size=2"));
}

} // namespace
} // namespace pentatron::trainer
