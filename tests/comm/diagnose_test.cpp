#include "pentatron/comm/control/diagnose.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace pentatron::comm::control {
namespace {

using State = OperationStatus::State;
using testing::HasSubstr;

constexpr double kTimeout = 5;

/// Ranks of one group "tp" unless said otherwise, each of which has begun `collectives`.
std::vector<RankView> ranks(std::initializer_list<int> collectives) {
  std::vector<int> members;
  for (size_t i = 0; i < collectives.size(); ++i) members.push_back(static_cast<int>(i));
  std::vector<RankView> result;
  for (const int count : collectives) {
    RankView view;
    view.status.groups.push_back({.name = "tp", .ranks = members, .collectives = count});
    view.status.last_finished = "barrier #3 of group world";
    result.push_back(view);
  }
  return result;
}

OperationStatus all_reduce(int number, State state, double waiting_s = 0) {
  return {.number = number,
          .call = "all_reduce(sum)",
          .tensor = "float32 [3, 4]",
          .state = state,
          .waiting_s = waiting_s};
}

void add(RankView& view, OperationStatus operation) {
  view.status.groups[0].operations.push_back(std::move(operation));
}

void waits(RankView& view, int number, double waiting_s) {
  add(view, all_reduce(number, State::kWaiting, waiting_s));
}

TEST(Diagnose, FindsNothingInRanksThatWork) {
  auto views = ranks({17, 17, 16});
  waits(views[0], 17, 4.9);
  waits(views[1], 17, 3);
  add(views[2], all_reduce(16, State::kDone));
  EXPECT_FALSE(diagnose(views, kTimeout));
  EXPECT_FALSE(diagnose({}, kTimeout));
}

TEST(Diagnose, NamesTheRankThatDoesNotArrive) {
  auto views = ranks({17, 17, 16, 17});
  for (const int rank : {0, 1, 3}) waits(views[rank], 17, 5.2);
  const auto finding = diagnose(views, kTimeout);
  ASSERT_TRUE(finding);
  EXPECT_EQ(finding->rank, 2);
  EXPECT_EQ(finding->sentence,
            "rank 2 has not arrived at all_reduce(sum) #17 of group tp of float32 [3, 4] for 5.2 "
            "s; ranks 0, 1, 3 wait; rank 2 last finished barrier #3 of group world");
}

TEST(Diagnose, FollowsTheWaitsToTheirCause) {
  // 0 waits for 1 in tp, 1 waits for 2 in a group of its own, 2 is away.
  auto views = ranks({17, 16, 17});
  waits(views[0], 17, 8);
  for (const int rank : {1, 2})
    views[rank].status.groups.push_back({.name = "dp", .ranks = {1, 2}, .collectives = rank == 1});
  views[1].status.groups[1].operations.push_back(
      {.number = 1, .call = "barrier", .state = State::kWaiting, .waiting_s = 6});
  const auto finding = diagnose(views, kTimeout);
  ASSERT_TRUE(finding);
  EXPECT_EQ(finding->rank, 2);
  EXPECT_THAT(
      finding->sentence,
      HasSubstr("rank 2 has not arrived at barrier #1 of group dp for 6.0 s; rank 1 waits"));
}

TEST(Diagnose, TellsRanksThatWaitForEachOther) {
  auto views = ranks({1, 0});
  waits(views[0], 1, 6);
  views[0].status.groups.push_back({.name = "dp", .ranks = {0, 1}});
  views[1].status.groups.push_back({.name = "dp", .ranks = {0, 1}, .collectives = 1});
  views[1].status.groups[1].operations.push_back(
      {.number = 1, .call = "barrier", .state = State::kWaiting, .waiting_s = 6});
  const auto finding = diagnose(views, kTimeout);
  ASSERT_TRUE(finding);
  EXPECT_EQ(finding->rank, -1);
  EXPECT_EQ(finding->sentence,
            "ranks wait for each other: rank 0 in all_reduce(sum) #1 of group tp of float32 [3, "
            "4], rank 1 in barrier #1 of group dp");
}

TEST(Diagnose, TellsAnOperationThatStandsStillWithAllItsRanks) {
  auto views = ranks({1, 1});
  waits(views[0], 1, 6);
  const auto finding = diagnose(views, kTimeout);
  ASSERT_TRUE(finding);
  EXPECT_THAT(finding->sentence, HasSubstr("is not complete after 6.0 s"));
}

void works(RankView& view, double progress_s, std::string on = "reading step_00000100") {
  view.status.work = std::move(on);
  view.status.progress_s = progress_s;
}

TEST(Diagnose, WaitsForLongWorkThatMakesProgress) {
  auto views = ranks({17, 17, 16});
  for (const int rank : {0, 1}) waits(views[rank], 17, 3000);
  works(views[2], 1);
  EXPECT_FALSE(diagnose(views, kTimeout));
  works(views[2], 1, ""); // it is just done, and on its way
  EXPECT_FALSE(diagnose(views, kTimeout));
  works(views[2], 6);
  const auto finding = diagnose(views, kTimeout);
  ASSERT_TRUE(finding);
  EXPECT_EQ(finding->rank, 2);
  EXPECT_THAT(finding->sentence, HasSubstr("rank 2 works on reading step_00000100 and has made no "
                                           "progress for 6.0 s"));
}

TEST(Diagnose, NamesTheRankThatIsStuckBesideOneThatWorks) {
  auto views = ranks({17, 16, 16});
  waits(views[0], 17, 3000);
  works(views[1], 1);
  const auto finding = diagnose(views, kTimeout);
  ASSERT_TRUE(finding);
  EXPECT_EQ(finding->rank, 2);
  EXPECT_THAT(finding->sentence, HasSubstr("rank 2 has not arrived at"));
}

TEST(Diagnose, FollowsTheWaitsToARankThatMakesProgress) {
  auto views = ranks({17, 16, 16});
  waits(views[0], 17, 3000);
  for (const int rank : {1, 2})
    views[rank].status.groups.push_back({.name = "dp", .ranks = {1, 2}, .collectives = rank == 1});
  views[1].status.groups[1].operations.push_back(
      {.number = 1, .call = "barrier", .state = State::kWaiting, .waiting_s = 2000});
  works(views[2], 1);
  EXPECT_FALSE(diagnose(views, kTimeout));
}

TEST(Diagnose, GivesTheLastOneTimeToCompleteTheOperation) {
  auto views = ranks({1, 1});
  waits(views[0], 1, 3000);
  waits(views[1], 1, 0.1);
  works(views[1], 0.2, "");
  EXPECT_FALSE(diagnose(views, kTimeout));
  works(views[1], 6, "");
  EXPECT_TRUE(diagnose(views, kTimeout));
}

TEST(Diagnose, TellsADisagreementWithoutWaiting) {
  auto views = ranks({17, 17});
  waits(views[0], 17, 0.1);
  add(views[1],
      {.number = 17, .call = "all_gather", .tensor = "float32 [12]", .state = State::kWaiting});
  EXPECT_EQ(diagnose(views, kTimeout)->sentence,
            "all_reduce #17 of group tp differs between ranks: rank 0 calls all_reduce(sum) of "
            "float32 [3, 4], rank 1 calls all_gather of float32 [12]");
  views[1].status.groups[0].operations[0] = all_reduce(17, State::kWaiting);
  EXPECT_FALSE(diagnose(views, kTimeout));
  views[1].status.groups[0].operations[0].tensor = "float32 [3, 5]";
  EXPECT_THAT(diagnose(views, kTimeout)->sentence, HasSubstr("float32 [3, 5]"));
}

TEST(Diagnose, LetsShapesDifferWhereTheyMay) {
  auto views = ranks({1, 1});
  add(views[0], {.number = 1, .call = "all_to_all", .tensor = "float32 [1]", .comparable = false});
  add(views[1], {.number = 1, .call = "all_to_all", .tensor = "float32 [2]", .comparable = false});
  EXPECT_FALSE(diagnose(views, kTimeout));
}

TEST(Diagnose, ComparesTheTwoEndsOfATransfer) {
  auto views = ranks({0, 0});
  OperationStatus send{.from = 0, .to = 1, .number = 1, .call = "send", .tensor = "float32 [2]"};
  OperationStatus recv = send;
  recv.call = "recv";
  add(views[0], send);
  add(views[1], recv);
  EXPECT_FALSE(diagnose(views, kTimeout));
  views[1].status.groups[0].operations[0].tensor = "float32 [3]";
  EXPECT_EQ(diagnose(views, kTimeout)->sentence,
            "send #1 from rank 0 to rank 1 in group tp differs between ranks: rank 0 calls send of "
            "float32 [2], rank 1 calls recv of float32 [3]");
}

TEST(Diagnose, NamesTheMissingEndOfATransfer) {
  auto views = ranks({0, 0, 0});
  add(views[1], {.from = 0,
                 .to = 1,
                 .number = 3,
                 .call = "recv",
                 .tensor = "float32 [2]",
                 .state = State::kWaiting,
                 .waiting_s = 7});
  views[1].status.groups[0].transfers[{0, 1}] = 3;
  views[0].status.groups[0].transfers[{0, 1}] = 2;
  const auto finding = diagnose(views, kTimeout);
  ASSERT_TRUE(finding);
  EXPECT_EQ(finding->rank, 0);
  EXPECT_THAT(finding->sentence,
              HasSubstr("rank 0 has not arrived at send #3 from rank 0 to rank 1 in group tp of "
                        "float32 [2] for 7.0 s; rank 1 waits"));
}

TEST(Diagnose, TellsARankThatLeftWithoutWaiting) {
  auto views = ranks({17, 16});
  waits(views[0], 17, 0.1);
  views[1].finished = true;
  EXPECT_EQ(diagnose(views, kTimeout)->sentence,
            "rank 1 finished while rank 0 waits in all_reduce(sum) #17 of group tp of float32 [3, "
            "4]");
  views[1].status.groups[0].collectives = 17; // it had done its part
  EXPECT_FALSE(diagnose(views, kTimeout));
}

TEST(WhereLost, TellsWhatTheOthersWaitFor) {
  auto views = ranks({17, 17, 16});
  waits(views[0], 17, 0.1);
  waits(views[1], 17, 0.1);
  EXPECT_EQ(where_lost(views, 2),
            " at all_reduce(sum) #17 of group tp of float32 [3, 4], where ranks 0, 1 wait; it "
            "had reported barrier #3 of group world finished");
  views[2].status.groups[0].collectives = 17;
  EXPECT_EQ(where_lost(views, 2),
            " at all_reduce(sum) #17 of group tp of float32 [3, 4], where ranks 0, 1 wait");
}

TEST(WhereLost, FallsBackOnWhatTheRankSaid) {
  auto views = ranks({17, 17});
  EXPECT_EQ(where_lost(views, 1), "; it had reported barrier #3 of group world finished");
  waits(views[1], 17, 0.1);
  EXPECT_EQ(where_lost(views, 1), " while in all_reduce(sum) #17 of group tp of float32 [3, 4]");
  EXPECT_EQ(where_lost({RankView{}}, 0), " before it had reported an operation");
}

TEST(RankList, StaysShort) {
  EXPECT_EQ(rank_list({4}), "rank 4");
  EXPECT_EQ(rank_list({1, 3}), "ranks 1, 3");
  std::vector<int> many(1000);
  EXPECT_LT(rank_list(many).size(), 100U);
  EXPECT_THAT(rank_list(many), HasSubstr("and 984 more"));
}

} // namespace
} // namespace pentatron::comm::control
