#include "pentatron/parallel/pipeline/schedule/check.h"

#include <algorithm>

#include <gmock/gmock.h>

#include "pentatron/base/error.h"
#include "pentatron/parallel/pipeline/schedule/forward_only.h"
#include "pentatron/parallel/pipeline/schedule/lower.h"
#include "tests/parallel/pipeline/schedule/schedule_text.h"

namespace pentatron::pipeline {
namespace {

using test::parse_schedule;
using test::to_text;
using testing::HasSubstr;
using Kind = Verdict::Kind;

/// 1F1B or another text with one thing replaced.
Verdict changed(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from << " in\n" << text;
  return check(parse_schedule(text.replace(at, from.size(), to)));
}

const std::string kPlain = to_text(make_schedule("1f1b", 2, 0, 2));
const std::string kLowered = to_text(lower(make_schedule("1f1b", 2, 0, 2)));
const std::string kHalves = to_text(make_schedule("zb_h1", 2, 0, 2));

TEST(Check, NamesTheFirstViolationOfOrder) {
  EXPECT_EQ(changed(kPlain, "0F0 0F1 0B0", "0F0 0B0 0F1").problem, ""); // slower, but right
  EXPECT_EQ(changed(kPlain, "1F0 1B0", "1B0 1F0").problem,
            "rank 1, action 0 (1B0): its forward has not run before it");
  EXPECT_THAT(changed(kPlain, "0F1", "0F0").problem, HasSubstr("its forward has run already"));
  EXPECT_THAT(changed(kPlain, "0B1", "0B0").problem, HasSubstr("its backward has run already"));
  EXPECT_THAT(changed(kPlain, "0F1", "1F1").problem, HasSubstr("stage 1 is on rank 1"));
  EXPECT_THAT(changed(kHalves, "0I0 0W0", "0W0 0I0").problem,
              HasSubstr("its input gradient has not run on this rank"));
  EXPECT_THAT(changed(kPlain, "0F1", "0F1+0B1").problem, HasSubstr("its forward has not run"));
  EXPECT_THAT(changed(kPlain, "0F0", "0free0 0F0").problem, HasSubstr("a lowered schedule"));
}

TEST(Check, NamesWhatIsMissing) {
  EXPECT_EQ(changed(kPlain, " 0B1", "").problem, "stage 0, microbatch 1: its backward is missing");
  EXPECT_EQ(changed(kHalves, " 0W1", "").problem,
            "stage 0, microbatch 1: its weight gradient is missing");
  const Verdict missing = changed(kPlain, " 1B0", "");
  EXPECT_EQ(missing.kind, Kind::kDeadlock);
  EXPECT_EQ(missing.problem, "rank 0, action 2 (0B0) waits for the input gradient of stage 1, "
                             "microbatch 0, which rank 1 has not made when it is done");
}

TEST(Check, NamesACircleOfWaits) {
  const Verdict verdict = changed(kPlain, "1F0 1B0 1F1 1B1", "1F1 1F0 1B0 1B1");
  EXPECT_EQ(verdict.problem, "");
  const Verdict circle = changed(changed(kPlain, "0F1 0B0", "0B0 0F1").ok() ? kPlain : "",
                                 "0F0 0F1 0B0 0B1\nrank 1: 1F0 1B0 1F1 1B1",
                                 "0F0 0B0 0F1 0B1\nrank 1: 1F1 1B1 1F0 1B0");
  EXPECT_EQ(circle.kind, Kind::kDeadlock);
  EXPECT_THAT(circle.problem, HasSubstr("rank 0, action 1 (0B0) waits for the input gradient of "
                                        "stage 1, microbatch 0, while rank 1, action 0 (1F1)"));
}

TEST(Check, FollowsMessages) {
  EXPECT_THAT(changed(kLowered, "0sendF0>1 ", "").problem, HasSubstr("gets the activation of"));
  EXPECT_THAT(changed(kLowered, " 1sendB1>0", "").problem, HasSubstr("not sent here"));
  EXPECT_THAT(changed(kLowered, "1recvF0<0 ", "").problem, HasSubstr("no receive was posted"));
  EXPECT_THAT(changed(kLowered, "0sendF0>1 0free0", "0free0 0sendF0>1").problem,
              HasSubstr("there is no output to send"));
  EXPECT_THAT(changed(kLowered, "0sendF1>1", "0sendF1>1 0sendF1>1").problem,
              HasSubstr("rank 1 never receives the activation of stage 0, microbatch 1"));
  EXPECT_THAT(changed(kLowered, "1recvF1<0", "1recvF1<0 1recvF1<0").problem,
              HasSubstr("received twice"));
  EXPECT_THAT(changed(kLowered, "0sendF0>1", "0sendF0>0").problem,
              HasSubstr("rank 0 cannot be its peer"));
}

TEST(Check, FollowsLifetimes) {
  EXPECT_THAT(changed(kLowered, " 0free0", "").problem, HasSubstr("its output is never freed"));
  EXPECT_THAT(changed(kLowered, " 0free0", " 0free0 0free0").problem,
              HasSubstr("no output to free"));
}

TEST(Check, OfAnEvaluationWantsForwardsAlone) {
  const Schedule s = make_schedule("1f1b", 2, 0, 2);
  EXPECT_EQ(check(s, Purpose::kEvaluation).problem,
            "rank 0, action 2 (0B0): an evaluation has no backward passes");
  const Schedule forwards = forward_only(s);
  EXPECT_TRUE(check(forwards, Purpose::kEvaluation).ok());
  EXPECT_EQ(check(forwards).problem, "stage 0, microbatch 0: its backward is missing");
}

TEST(Check, RefusesSizesThatDoNotFit) {
  Schedule s = make_schedule("1f1b", 2, 0, 2);
  s.rank_of_stage[1] = 7;
  EXPECT_THAT(check(s).problem, HasSubstr("stage 1 is on rank 7 of 2"));
  s = make_schedule("1f1b", 2, 0, 2);
  s.num_microbatches = 1 << 30;
  EXPECT_THAT(check(s).problem, HasSubstr("8 actions cannot run"));
  EXPECT_THAT(check({}).problem, HasSubstr("are no schedule"));
  EXPECT_THROW(require_valid(s), ConfigError);
}

} // namespace
} // namespace pentatron::pipeline
