// Lowered schedules run where a send waits for its receive and transfers of a channel run in order.
#include "pentatron/parallel/pipeline/schedule/rendezvous.h"

#include <cstdlib>
#include <string>

#include <gmock/gmock.h>

#include "pentatron/base/error.h"
#include "pentatron/parallel/pipeline/schedule/check.h"
#include "pentatron/parallel/pipeline/schedule/forward_only.h"
#include "pentatron/parallel/pipeline/schedule/lower.h"
#include "tests/parallel/pipeline/schedule/schedule_text.h"

namespace pentatron::pipeline {
namespace {

using test::to_text;
using testing::HasSubstr;

/// PENTATRON_MATRIX=full takes every size.
bool full() {
  const char* const text = std::getenv("PENTATRON_MATRIX");
  return text != nullptr && std::string(text) == "full";
}

std::vector<int> sizes_to(int last, std::vector<int> some) {
  if (!full()) return some;
  std::vector<int> all;
  for (int i = 1; i <= last; ++i) all.push_back(i);
  return all;
}

void expect_runs(const Schedule& made, int prefetch) {
  const Schedule lowered = lower(made, {.prefetch = prefetch});
  const Verdict verdict = check(lowered, Purpose::kTraining, Messages::kChannels);
  ASSERT_TRUE(verdict.ok()) << made.name << " of " << made.num_ranks << " ranks and "
                            << made.num_microbatches << " microbatches: " << verdict.problem;
}

class Rendezvous : public testing::TestWithParam<std::string> {};

TEST_P(Rendezvous, EverySizeRuns) {
  for (const int ranks : sizes_to(16, {1, 2, 3, 4, 7, 16})) {
    for (const int microbatches : sizes_to(64, {1, 2, 3, 5, 16, 17, 64})) {
      for (const int v : GetParam() == "interleaved" ? std::vector{2, 3} : std::vector{0}) {
        const Schedule made = make_schedule(GetParam(), ranks, v, microbatches);
        for (const int prefetch : {0, 1}) { // comm_overlap.pp
          expect_runs(made, prefetch);
          if (HasFatalFailure()) return;
          const Verdict forwards = check(lower(forward_only(made), {.prefetch = prefetch}),
                                         Purpose::kEvaluation, Messages::kChannels);
          ASSERT_TRUE(forwards.ok()) << forwards.problem;
        }
      }
    }
  }
}

TEST_P(Rendezvous, ReceivesMayBePostedMuchEarlier) {
  for (const int prefetch : {0, 2, 5, 100}) {
    expect_runs(make_schedule(GetParam(), 4, 0, 11), prefetch);
    if (HasFatalFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(Schedules, Rendezvous, testing::ValuesIn(schedule_names()),
                         [](const auto& info) {
                           std::string name;
                           for (const char c : info.param) name += std::isalnum(c) ? c : '_';
                           return name;
                         });

Verdict in_one_stream(const Schedule& made) {
  return check(lower(made), Purpose::kTraining, Messages::kOneStream);
}

TEST(RendezvousInOneStream, DeadlocksWhereActivationsMeetGradients) {
  const Verdict verdict = in_one_stream(make_schedule("1f1b", 2, 0, 3));
  EXPECT_EQ(verdict.kind, Verdict::Kind::kDeadlock);
  EXPECT_THAT(verdict.problem, HasSubstr("waits for its other end"));
  EXPECT_THAT(verdict.problem, HasSubstr("rank 1, action"));
  for (const char* name : {"interleaved", "zb_h1", "zb_h2", "zb_v", "dualpipe_v"})
    EXPECT_FALSE(in_one_stream(make_schedule(name, 4, 0, 8)).ok()) << name;
  EXPECT_TRUE(in_one_stream(make_schedule("1f1b", 1, 0, 3)).ok());
  // With one microbatch only a receive that is posted early stands before the send it waits for.
  EXPECT_FALSE(in_one_stream(make_schedule("1f1b", 2, 0, 1)).ok());
  EXPECT_TRUE(check(lower(make_schedule("1f1b", 2, 0, 1), {.prefetch = 0}), Purpose::kTraining,
                    Messages::kOneStream)
                  .ok());
}

/// 1F1B with one thing replaced, with channels.
Verdict changed(const std::string& from, const std::string& to) {
  std::string text = to_text(lower(make_schedule("1f1b", 2, 0, 2)));
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from << " in\n" << text;
  return check(test::parse_schedule(text.replace(at, from.size(), to)), Purpose::kTraining,
               Messages::kChannels);
}

TEST(RendezvousOfWrongOrders, Fails) {
  const std::string text = to_text(lower(make_schedule("1f1b", 2, 0, 2)));
  EXPECT_TRUE(changed("0F0", "0F0").ok()) << text;
  EXPECT_FALSE(changed("0sendF0>1 ", "").ok());
  EXPECT_FALSE(changed("1recvF0<0", "1recvF1<0").ok());
  EXPECT_FALSE(changed("1sendB0>0", "1sendB1>0").ok());
}

} // namespace
} // namespace pentatron::pipeline
