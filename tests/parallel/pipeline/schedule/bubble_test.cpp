// Idle time of every schedule against its published formula.
#include <algorithm>

#include <gmock/gmock.h>

#include "pentatron/base/error.h"
#include "pentatron/parallel/pipeline/schedule/lower.h"
#include "pentatron/parallel/pipeline/schedule/simulate.h"

namespace pentatron::pipeline {
namespace {

constexpr double kExact = 1e-9;

struct Case {
  int p, m;
  StageCost c;
};

/// W is not longer than F and I, which the zero-bubble formulas assume.
std::vector<Case> cases() {
  std::vector<Case> all;
  for (const int p : {1, 2, 3, 4, 8}) {
    for (const int m : {2 * p, 3 * p, 4 * p + 1, 8 * p}) {
      for (const StageCost c : {StageCost{1, 1, 1}, {1, 1, 0.5}, {1, 1.2, 0.9}, {2, 2.5, 2}}) {
        all.push_back({p, m, c});
      }
    }
  }
  return all;
}

Timeline run(const char* name, const Case& at, int v = 0, double overlap = 1) {
  return simulate(make_schedule(name, at.p, v, at.m),
                  {.stages = {at.c}, .latency = 0, .overlap = overlap});
}

double longest_idle(const Timeline& timeline) {
  double idle = 0;
  for (const RowUse& use : row_use(timeline)) idle = std::max(idle, makespan(timeline) - use.busy);
  return idle;
}

TEST(Bubble, OfOneFOneBAndGpipeIsTheClassicShare) {
  for (const char* name : {"gpipe", "1f1b"}) {
    for (Case at : cases()) {
      for (const int m : {1, at.m}) {
        at.m = m;
        for (const RowUse& use : row_use(run(name, at))) {
          EXPECT_NEAR(use.idle_share, (at.p - 1.0) / (m + at.p - 1), kExact) << name;
        }
      }
    }
  }
}

TEST(Bubble, OfInterleavedIsDividedByTheStagesARankForEveryNumberOfMicrobatches) {
  for (const int p : {1, 2, 3, 4, 7}) {
    for (int m = p; m <= 4 * p; ++m) {
      for (const int v : {2, 3, 5}) {
        for (const RowUse& use : row_use(run("interleaved", {p, m, {1, 1.2, 0.9}}, v))) {
          EXPECT_NEAR(use.idle_share, (p - 1.0) / (v * m + p - 1), kExact) << p << ' ' << m;
        }
      }
    }
  }
}

TEST(Bubble, OfInterleavedWithFewMicrobatchesTakesNoLongerThanWithMore) {
  for (const int p : {2, 3, 4, 8}) {
    for (int m = 1; m < p; ++m) {
      EXPECT_LT(makespan(run("interleaved", {p, m, {}}, 2)),
                makespan(run("interleaved", {p, m + 1, {}}, 2)));
    }
  }
}

TEST(Bubble, OfZeroBubbleH1) {
  for (const Case& at : cases()) {
    const auto& [f, i, w] = at.c;
    EXPECT_NEAR(bubble(run("zb_h1", at)), (at.p - 1) * (f + i - w), kExact);
    EXPECT_NEAR(longest_idle(run("zb_h1", at)), (at.p - 1) * (f + i - w), kExact);
  }
}

TEST(Bubble, OfZeroBubbleH2) {
  for (const Case& at : cases()) {
    const auto& [f, i, w] = at.c;
    EXPECT_NEAR(bubble(run("zb_h2", at)), (at.p - 1) * (f + i - 2 * w), kExact);
  }
}

TEST(Bubble, OfZeroBubbleH2WithFewMicrobatchesIsFilledAsFarAsTheyGo) {
  const int p = 8;
  for (int m = p; m <= 2 * p; ++m) {
    const Timeline timeline = run("zb_h2", {p, m, {1, 1, 1}});
    EXPECT_NEAR(bubble(timeline), p - 1 - std::min(m - p, p - 1), kExact);
    EXPECT_NEAR(makespan(timeline), 3 * m + p - 1, kExact); // never beyond ZB-H1
  }
}

TEST(Bubble, OfZeroBubbleVVanishesWithEqualCosts) {
  for (Case at : cases()) {
    at.c = {0.5, 0.5, 0.5};
    const Timeline timeline = run("zb_v", at);
    EXPECT_NEAR(bubble(timeline), 0, kExact);
    for (const RowUse& use : row_use(timeline)) EXPECT_NEAR(use.window, use.busy, kExact);
    // Rank r begins after r forwards and ends as much later.
    EXPECT_NEAR(longest_idle(timeline), (at.p - 1) * 0.5, kExact);
  }
}

TEST(Bubble, OfDualPipeV) {
  for (Case at : cases()) {
    at.c.backward_input = at.c.forward; // as the formula assumes
    const auto& [f, i, w] = at.c;
    const double pair = f + i + w;
    EXPECT_NEAR(longest_idle(run("dualpipe_v", at)), (at.p - 1) * (pair + i + w - 3 * w), kExact)
        << at.p << ' ' << at.m << ' ' << w;
  }
}

TEST(Bubble, FasterPairsShortenDualPipeV) {
  const Case at{4, 20, {1, 1, 1}};
  EXPECT_LT(makespan(run("dualpipe_v", at, 0, 0.8)), makespan(run("dualpipe_v", at)));
  EXPECT_EQ(makespan(run("zb_v", at, 0, 0.8)), makespan(run("zb_v", at)));
}

TEST(Bubble, OfEveryZeroBubbleScheduleIsBelowOneFOneB) {
  for (Case at : cases()) {
    if (at.p == 1) continue;
    const double plain = longest_idle(run("1f1b", at));
    for (const char* name : {"zb_h1", "zb_h2"}) EXPECT_LT(longest_idle(run(name, at)), plain);
    at.c = {at.c.forward / 2, at.c.backward_input / 2, at.c.backward_weight / 2};
    for (const char* name : {"zb_v", "dualpipe_v"}) EXPECT_LT(longest_idle(run(name, at)), plain);
  }
}

TEST(Simulation, LoweringChangesNoTime) {
  for (const std::string& name : schedule_names()) {
    const Schedule s = make_schedule(name, 3, 0, 7);
    const Costs costs{.stages = {{1, 1.5, 0.7}}, .latency = 0.3, .overlap = 0.9};
    const Timeline a = simulate(s, costs), b = simulate(lower(s), costs);
    for (int r = 0; r < 3; ++r) {
      ASSERT_EQ(a.rows[r].size(), b.rows[r].size());
      for (size_t i = 0; i < a.rows[r].size(); ++i) {
        EXPECT_EQ(a.rows[r][i].action, b.rows[r][i].action);
        EXPECT_EQ(a.rows[r][i].start, b.rows[r][i].start);
        EXPECT_EQ(a.rows[r][i].end, b.rows[r][i].end);
      }
    }
  }
}

TEST(Simulation, StagesAndMessagesHaveTheirCosts) {
  // By hand: F 1 | 2 apart by 0.5, then B 4 + 5 = 9 | 1 + 2 = 3.
  const Costs costs{.stages = {{1, 4, 5}, {2, 1, 2}}, .latency = 0.5};
  const Timeline timeline = simulate(make_schedule("1f1b", 2, 0, 1), costs);
  EXPECT_EQ(timeline.rows[1][0].start, 1.5);
  EXPECT_EQ(timeline.rows[1][1].start, 3.5);
  EXPECT_EQ(timeline.rows[0][1].start, 7.0);
  EXPECT_EQ(makespan(timeline), 16.0);
  EXPECT_DOUBLE_EQ(row_use(timeline)[1].idle_share, 1 - 5.0 / 16);
}

TEST(Simulation, TheTurnOfAVHasNoLatency) {
  const Timeline timeline =
      simulate(make_schedule("zb_v", 2, 0, 1), {.stages = {{1, 1, 1}}, .latency = 10});
  EXPECT_EQ(timeline.rows[1][0].start, 11); // 1F0
  EXPECT_EQ(timeline.rows[1][1].start, 12); // 2F0
  EXPECT_EQ(timeline.rows[0][1].start, 23); // 3F0
}

TEST(Simulation, RefusesBrokenSchedulesAndCosts) {
  Schedule s = make_schedule("1f1b", 2, 0, 2);
  EXPECT_THROW(simulate(s, {.stages = {{}, {}, {}}}), ConfigError);
  EXPECT_THROW(simulate(s, {.stages = {{-1, 1, 1}}}), ConfigError);
  EXPECT_THROW(simulate(s, {}), ConfigError);
  s.actions[0].pop_back();
  EXPECT_THROW(simulate(s, {.stages = {{}}}), ConfigError);
}

} // namespace
} // namespace pentatron::pipeline
