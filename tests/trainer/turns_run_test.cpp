// Runs whose passes take turns: the same numbers, and the end of a run in the middle of a pair.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/quiet_log.h"
#include "tests/support/ranks.h"
#include "tests/trainer/layout_runs.h"

namespace pentatron::trainer {
namespace {

/// Loss and gradient norm of every step.
std::vector<std::string> steps_of(const std::string& keys, int ranks, int iterations = 6) {
  const test::QuietLog quiet;
  const test::Scratch scratch;
  test::write_documents(scratch / "documents.jsonl", 400);
  const Config config =
      test::layout_config("moe_shared",
                          "train.eval_interval=0 logger.log_interval=1 "
                          "parallel.expert_model_parallel_size=2 "
                          "parallel.pipeline_schedule=dualpipe_v " +
                              fmt::format("train.train_iters={} ", iterations) + keys,
                          ranks, scratch);
  test::run_ranks(ranks, [&](const comm::Group& world) { Trainer(config, world).run(); });
  std::vector<std::string> steps;
  std::ifstream lines(scratch / "logs/metrics.jsonl");
  for (std::string line; std::getline(lines, line);) {
    const Json step = Json::parse(line);
    if (step.contains("loss"))
      steps.push_back(step.at("loss").dump() + " " + step.at("grad_norm").dump());
  }
  EXPECT_EQ(std::ssize(steps), iterations);
  return steps;
}

TEST(TurnsInRuns, GiveTheBitsOfPassesOneAfterTheOther) {
  const std::string untied = "dtype=fp32 model.untie_embeddings_and_output_weights=true ";
  for (const char* more : {"", "ddp.zero_stage=3", "train.recompute=selective"}) {
    const std::string turns = untied + "comm_overlap.moe_expert_parallel=true " + more;
    EXPECT_EQ(steps_of(turns, 2), steps_of(untied + more, 2)) << more;
  }
  const std::string pp2 = untied + "parallel.pipeline_model_parallel_size=2 ";
  EXPECT_EQ(steps_of(pp2 + "comm_overlap.moe_expert_parallel=true", 4), steps_of(pp2, 4));
}

TEST(TurnsInRuns, SkipStepsThatAreNotFinite) {
  using testing::EndsWith;
  using testing::Not;
  const std::string fp16 = "dtype=fp16 mixed_precision.initial_loss_scale=268435456 "
                           "mixed_precision.hysteresis=1 "
                           "model.untie_embeddings_and_output_weights=true ";
  const std::vector<std::string> steps = steps_of(fp16, 2, 14);
  EXPECT_THAT(steps.front(), EndsWith(" null")); // the scale was too large
  EXPECT_THAT(steps.back(), Not(EndsWith(" null")));
  EXPECT_EQ(steps_of(fp16 + "comm_overlap.moe_expert_parallel=true", 2, 14), steps);
}

} // namespace
} // namespace pentatron::trainer
