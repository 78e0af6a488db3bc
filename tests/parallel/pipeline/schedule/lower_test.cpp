#include "pentatron/parallel/pipeline/schedule/lower.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "pentatron/base/error.h"
#include "pentatron/parallel/pipeline/schedule/check.h"
#include "pentatron/parallel/pipeline/schedule/text.h"
#include "tests/parallel/pipeline/schedule/schedule_text.h"

namespace pentatron::pipeline {
namespace {

int count(const std::vector<Action>& steps, ActionKind kind) {
  return static_cast<int>(std::ranges::count(steps, kind, &Action::kind));
}

TEST(Lower, AddsAMessageForEveryBoundaryBetweenRanks) {
  for (const std::string& name : schedule_names()) {
    const int m = 5;
    const Schedule s = lower(make_schedule(name, 3, 0, m));
    int boundaries = 0, sends = 0, receives = 0;
    for (int stage = 0; stage + 1 < s.num_stages; ++stage) {
      boundaries += s.rank_of_stage[stage] != s.rank_of_stage[stage + 1];
    }
    for (const auto& steps : s.actions) {
      sends += count(steps, ActionKind::kSend);
      receives += count(steps, ActionKind::kRecv);
    }
    EXPECT_EQ(sends, 2 * m * boundaries) << name;
    EXPECT_EQ(receives, sends) << name;
  }
}

TEST(Lower, OneRankExchangesNothing) {
  for (const std::string& name : schedule_names()) {
    const Schedule s = lower(make_schedule(name, 1, 0, 4));
    EXPECT_EQ(count(s.actions[0], ActionKind::kSend), 0);
    EXPECT_EQ(count(s.actions[0], ActionKind::kFree), 4 * s.num_stages);
  }
}

TEST(Lower, TheTurnOfAVFreesAfterTheNextStagesForward) {
  const Schedule s = lower(make_schedule("zb_v", 2, 0, 1), {.prefetch = 0});
  std::string line;
  for (const Action& action : s.actions[1]) line += ' ' + to_text(action);
  EXPECT_EQ(line, " 1recvF0<0 1F0 2F0 2sendF0>0 1free0 2free0 2recvB0<0 2I0 2W0 1I0 1sendB0>0 1W0");
}

/// Computing actions between a receive and the one that needs it.
std::vector<int> distances(const Schedule& s, int rank) {
  std::vector<int> found;
  const auto& steps = s.actions[rank];
  for (size_t i = 0; i < steps.size(); ++i) {
    if (steps[i].kind != ActionKind::kRecv) continue;
    int between = 0;
    for (size_t j = i + 1; j < steps.size(); ++j) {
      const Passes passes(steps[j]);
      const bool needs = std::any_of(passes.begin(), passes.end(), [&](const Pass& pass) {
        return pass.stage == steps[i].stage && pass.microbatch == steps[i].microbatch &&
               (steps[i].payload == Payload::kActivation ? pass.kind == ActionKind::kForward
                                                         : makes_input_gradient(pass.kind));
      });
      if (needs) break;
      between += is_compute(steps[j].kind);
    }
    found.push_back(between);
  }
  return found;
}

TEST(Lower, PostsReceivesSoManyComputationsAhead) {
  for (const int prefetch : {0, 1, 3}) {
    for (const std::string& name : schedule_names()) {
      const Schedule s = lower(make_schedule(name, 4, 0, 12), {.prefetch = prefetch});
      for (int rank = 0; rank < 4; ++rank) {
        int exact = 0;
        for (const int distance : distances(s, rank)) {
          // Less only at the beginning; more only where the sender's order asks for it.
          exact += distance == prefetch;
          if (name == "1f1b" || name == "gpipe") {
            EXPECT_LE(distance, prefetch);
          }
        }
        EXPECT_GT(exact, 6) << name << ' ' << prefetch;
      }
    }
  }
}

TEST(Lower, ReceivesFollowTheOrderOfSends) {
  // Rank 0 sends 1 before 0, rank 1 wants 0 first: both are posted before the first forward.
  const Schedule s = test::parse_schedule("schedule crossed\nranks 2\nstages 2\nmicrobatches 2\n"
                                          "rank_of_stage 0 1\nrank 0: 0F1 0F0 0B0 0B1\n"
                                          "rank 1: 1F0 1B0 1F1 1B1\n");
  const Schedule low = lower(s, {.prefetch = 0});
  EXPECT_TRUE(check(low).ok()) << check(low).problem;
  EXPECT_EQ(to_text(low.actions[1][0]), "1recvF1<0");
  EXPECT_EQ(to_text(low.actions[1][1]), "1recvF0<0");
}

TEST(Lower, RefusesWhatIsNotASchedule) {
  const Schedule good = make_schedule("1f1b", 2, 0, 2);
  EXPECT_THROW(lower(lower(good)), ConfigError);
  Schedule s = good;
  s.actions[1].erase(s.actions[1].begin()); // 1F0: what stage 0 sends is never used
  EXPECT_THROW(lower(s), ConfigError);
  s = good;
  std::swap(s.actions[0], s.actions[1]);
  EXPECT_THROW(lower(s), ConfigError);
  s = good;
  s.actions.pop_back();
  EXPECT_THROW(lower(s), ConfigError);
}

} // namespace
} // namespace pentatron::pipeline
