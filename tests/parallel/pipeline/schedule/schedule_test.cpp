#include "pentatron/parallel/pipeline/schedule/schedule.h"

#include <algorithm>

#include <gmock/gmock.h>

#include "pentatron/base/error.h"
#include "pentatron/parallel/pipeline/schedule/check.h"
#include "pentatron/parallel/pipeline/schedule/lower.h"
#include "pentatron/parallel/pipeline/schedule/text.h"

namespace pentatron::pipeline {
namespace {

using testing::HasSubstr;

std::string line_of(const Schedule& schedule, int rank) {
  std::string line;
  for (const Action& action : schedule.actions[rank]) line += ' ' + to_text(action);
  return line.substr(1);
}

class EverySchedule : public testing::TestWithParam<std::string> {};

TEST_P(EverySchedule, RunsWithAnyNumberOfRanksAndMicrobatches) {
  const int most_stages = GetParam() == "interleaved" ? 4 : 2;
  for (int p = 1; p <= 9; ++p) {
    for (int m = 1; m <= 20; ++m) {
      for (int v = 2; v <= most_stages; ++v) {
        const Schedule s = make_schedule(GetParam(), p, most_stages > 2 ? v : 0, m);
        EXPECT_EQ(s.num_stages, p * stages_per_rank(GetParam(), most_stages > 2 ? v : 0));
        const Verdict made = check(s);
        ASSERT_TRUE(made.ok()) << p << " ranks, " << m << " microbatches: " << made.problem;
        const Verdict lowered = check(lower(s));
        ASSERT_TRUE(lowered.ok()) << p << " ranks, " << m << " microbatches: " << lowered.problem;
        ASSERT_EQ(made.peaks, lowered.peaks);
      }
    }
  }
}

TEST_P(EverySchedule, RunsMicrobatchesOfAStageInOrder) {
  const Schedule s = make_schedule(GetParam(), 4, 0, 11);
  for (int stage = 0; stage < s.num_stages; ++stage) {
    std::vector<int> forwards, gradients, weights;
    for (const Action& action : s.actions[s.rank_of_stage[stage]]) {
      for (const Pass& pass : Passes(action)) {
        if (pass.stage != stage) continue;
        if (pass.kind == ActionKind::kForward) forwards.push_back(pass.microbatch);
        if (makes_input_gradient(pass.kind)) gradients.push_back(pass.microbatch);
        if (makes_weight_gradient(pass.kind)) weights.push_back(pass.microbatch);
      }
    }
    EXPECT_TRUE(std::ranges::is_sorted(forwards));
    EXPECT_TRUE(std::ranges::is_sorted(gradients));
    EXPECT_TRUE(std::ranges::is_sorted(weights));
  }
}

INSTANTIATE_TEST_SUITE_P(Names, EverySchedule, testing::ValuesIn(schedule_names()),
                         [](const auto& info) { return "of_" + info.param; });

// Written down from the papers' figures.
TEST(Schedules, GpipeRunsAllForwardsThenAllBackwards) {
  const Schedule s = make_schedule("gpipe", 2, 0, 3);
  EXPECT_EQ(line_of(s, 0), "0F0 0F1 0F2 0B0 0B1 0B2");
  EXPECT_EQ(line_of(s, 1), "1F0 1F1 1F2 1B0 1B1 1B2");
}

TEST(Schedules, OneFOneBAlternatesAfterTheWarmup) {
  const Schedule s = make_schedule("1f1b", 4, 0, 5);
  EXPECT_EQ(line_of(s, 0), "0F0 0F1 0F2 0F3 0B0 0F4 0B1 0B2 0B3 0B4");
  EXPECT_EQ(line_of(s, 2), "2F0 2F1 2B0 2F2 2B1 2F3 2B2 2F4 2B3 2B4");
  EXPECT_EQ(line_of(s, 3), "3F0 3B0 3F1 3B1 3F2 3B2 3F3 3B3 3F4 3B4");
}

TEST(Schedules, InterleavedHasMegatronsOrder) {
  const Schedule s = make_schedule("interleaved", 2, 2, 4);
  EXPECT_EQ(line_of(s, 0), "0F0 0F1 2F0 2F1 0F2 2B0 0F3 2B1 2F2 0B0 2F3 0B1 2B2 2B3 0B2 0B3");
  EXPECT_EQ(line_of(s, 1), "1F0 1F1 3F0 3B0 3F1 3B1 1F2 1B0 1F3 1B1 3F2 3B2 3F3 3B3 1B2 1B3");
}

TEST(Schedules, InterleavedDealsOutMicrobatchesThatDoNotFillAGroup) {
  const Schedule s = make_schedule("interleaved", 2, 2, 5); // groups of 3 and 2
  EXPECT_EQ(line_of(s, 0),
            "0F0 0F1 0F2 2F0 2F1 2F2 2B0 0F3 2B1 0F4 2B2 2F3 0B0 2F4 0B1 0B2 2B3 2B4 "
            "0B3 0B4");
}

TEST(Schedules, ZeroBubbleH1PutsWeightGradientsOffByTheRank) {
  const Schedule s = make_schedule("zb_h1", 3, 0, 4);
  EXPECT_EQ(line_of(s, 0), "0F0 0F1 0F2 0I0 0W0 0F3 0I1 0W1 0I2 0W2 0I3 0W3");
  EXPECT_EQ(line_of(s, 2), "2F0 2I0 2F1 2I1 2F2 2I2 2W0 2F3 2I3 2W1 2W2 2W3");
}

TEST(Schedules, ZeroBubbleH2StartsWithTwiceTheForwards) {
  const Schedule s = make_schedule("zb_h2", 2, 0, 4);
  EXPECT_EQ(line_of(s, 0), "0F0 0F1 0F2 0I0 0W0 0F3 0I1 0W1 0I2 0W2 0I3 0W3");
  EXPECT_EQ(line_of(s, 1), "1F0 1I0 1F1 1I1 1F2 1I2 1W0 1F3 1I3 1W1 1W2 1W3");
}

TEST(Schedules, VShapesPlaceTheLastStageOnTheFirstRank) {
  for (const char* name : {"zb_v", "dualpipe_v"}) {
    EXPECT_EQ(make_schedule(name, 3, 0, 6).rank_of_stage, (std::vector{0, 1, 2, 2, 1, 0}));
    EXPECT_EQ(make_schedule(name, 3, 2, 6), make_schedule(name, 3, 0, 6));
  }
  EXPECT_EQ(make_schedule("interleaved", 3, 2, 6).rank_of_stage, (std::vector{0, 1, 2, 0, 1, 2}));
}

TEST(Schedules, DualPipeVOverlapsForwardsOfOneLegWithBackwardsOfTheOther) {
  const Schedule s = make_schedule("dualpipe_v", 4, 0, 20);
  for (int rank = 0; rank < 4; ++rank) {
    int pairs = 0;
    for (const Action& action : s.actions[rank]) {
      if (action.kind != ActionKind::kOverlap) continue;
      ++pairs;
      EXPECT_EQ(action.stage + action.second_stage, 7);
    }
    // Of 40 backwards: all but those that fill and drain the pipeline.
    EXPECT_EQ(pairs, rank == 3 ? 2 * 16 - 1 : 2 * (13 + rank) + 3 - rank);
  }
}

/// Most (stage, microbatch) pairs kept on each rank, from the papers' tables.
TEST(PeakActivations, AreThoseOfThePapers) {
  for (const int p : {1, 2, 3, 4, 8}) {
    for (const int m : {1, 2, 4 * p, 5 * p}) {
      const auto peak = [&](const char* name, int v, int rank) {
        return check(make_schedule(name, p, v, m)).peaks[rank].live;
      };
      for (int r = 0; r < p; ++r) {
        EXPECT_EQ(peak("gpipe", 0, r), m);
        EXPECT_EQ(peak("1f1b", 0, r), std::min(p - r, m));
        EXPECT_EQ(peak("zb_h1", 0, r), std::min(p, m));
        EXPECT_EQ(peak("zb_h2", 0, r), std::min(2 * p - 1, m));
        EXPECT_LE(peak("zb_v", 0, r), 2 * std::min(p, m));
        EXPECT_LE(peak("dualpipe_v", 0, r), std::min(2 * p + 1, 2 * m));
        EXPECT_LE(peak("interleaved", 3, r), std::min(2 * (p - r - 1) + 2 * p + 1, 3 * m));
        if (m < 4 * p) continue;
        EXPECT_EQ(peak("zb_v", 0, r), 2 * p);
        EXPECT_EQ(peak("dualpipe_v", 0, r), 2 * p + 1);
        EXPECT_EQ(peak("interleaved", 3, r), 2 * (p - r - 1) + 2 * p + 1);
      }
    }
  }
  // Two groups of 6 and 5 microbatches for 4 ranks.
  EXPECT_EQ(check(make_schedule("interleaved", 4, 3, 11)).peaks[0].live, 2 * 3 + 2 * 6 + 1);
}

TEST(PeakActivations, DeferredWeightGradientsAreCounted) {
  const Verdict h1 = check(make_schedule("zb_h1", 4, 0, 16));
  for (int r = 0; r < 4; ++r) EXPECT_EQ(h1.peaks[r].deferred, r + 1);
  EXPECT_EQ(check(make_schedule("1f1b", 4, 0, 16)).peaks[0].deferred, 0);
}

std::string message(const std::string& name, int p, int v, int m) {
  try {
    make_schedule(name, p, v, m);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

TEST(Schedules, ImpossibleCombinationsSayWhatWouldWork) {
  EXPECT_THAT(message("2f2b", 2, 0, 4),
              HasSubstr("try: parallel.pipeline_schedule in {gpipe, 1f1b"));
  EXPECT_THAT(message("1f1b", 2, 2, 4),
              HasSubstr("try: parallel.virtual_pipeline_model_parallel_size=null or "));
  EXPECT_THAT(message("zb_v", 2, 3, 4), HasSubstr("two stages per rank"));
  EXPECT_THAT(message("interleaved", 2, -1, 4),
              HasSubstr("try: parallel.virtual_pipeline_model_parallel_size=2"));
  EXPECT_THAT(message("1f1b", 0, 0, 4), HasSubstr("try: parallel.pipeline_model_parallel_size=1"));
  EXPECT_THAT(message("1f1b", 2, 0, 0), HasSubstr("a step of 0 microbatches"));
  EXPECT_THAT(message("1f1b", 65536, 0, 1 << 20), HasSubstr("has more than 67108864 actions"));
  EXPECT_THAT(message("interleaved", 65536, 2147483647, 1),
              HasSubstr("has more than 67108864 actions"));
}

TEST(Schedules, KnowTheirStagesARank) {
  EXPECT_EQ(stages_per_rank("1f1b"), 1);
  EXPECT_EQ(stages_per_rank("zb_v"), 2);
  EXPECT_EQ(stages_per_rank("dualpipe_v", 2), 2);
  EXPECT_EQ(stages_per_rank("interleaved"), 2);
  EXPECT_EQ(stages_per_rank("interleaved", 5), 5);
}

} // namespace
} // namespace pentatron::pipeline
