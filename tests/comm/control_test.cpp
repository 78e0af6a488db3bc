// The pure parts of the control channel: hash, messages, operation log.
#include "pentatron/base/error.h"
#include "pentatron/comm/control/message.h"
#include "pentatron/comm/control/operation_log.h"
#include "pentatron/comm/control/siphash.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

namespace pentatron::comm::control {
namespace {

using State = OperationStatus::State;

TEST(SipHash, GivesTheAuthorsVectors) {
  // vectors.h of the reference implementation: key 00..0f, messages 00, 00 01, ... of growing
  // length.
  Key key;
  std::iota(key.begin(), key.end(), uint8_t{0});
  std::string message;
  EXPECT_EQ(to_hex(siphash(key, message)), "a3817f04ba25a8e66df67214c7550293");
  message += '\0';
  EXPECT_EQ(to_hex(siphash(key, message)), "da87c1d86b99af44347659119b22fc45");
  message += '\1';
  EXPECT_EQ(to_hex(siphash(key, message)), "8177228da4a45dc7fca38bdef60affe4");
}

TEST(SipHash, DependsOnEveryByteOfKeyAndMessage) {
  const std::string message = "seventeen bytes..";
  const Key key = random_key();
  const Key hash = siphash(key, message);
  for (size_t i = 0; i < message.size(); ++i) {
    std::string other = message;
    other[i] ^= 1;
    EXPECT_FALSE(equal_keys(siphash(key, other), hash));
  }
  for (size_t i = 0; i < key.size(); ++i) {
    Key other = key;
    other[i] ^= 1;
    EXPECT_FALSE(equal_keys(siphash(other, message), hash));
  }
  EXPECT_TRUE(equal_keys(siphash(key, message), hash));
}

TEST(Keys, TravelAsHexadecimalDigits) {
  const Key key = random_key();
  EXPECT_TRUE(equal_keys(key_from_hex(to_hex(key)), key));
  EXPECT_FALSE(equal_keys(random_key(), key));
  for (const char* text :
       {"", "00", "g0000000000000000000000000000000", "000000000000000000000000000000000"})
    EXPECT_THROW(key_from_hex(text), ConfigError) << text;
}

RankStatus some_status() {
  RankStatus status;
  status.last_finished = "barrier #3 of group world";
  status.work = "reading step_00000100";
  status.progress_s = 1.5;
  status.groups.push_back({.name = "tp", .ranks = {0, 4, 8, 9}, .collectives = 17});
  status.groups.push_back({.name = "pp", .ranks = {5}, .ordinal = 2});
  GroupStatus& tp = status.groups[0];
  tp.transfers[{0, 4}] = 7;
  tp.operations.push_back({.number = 17,
                           .call = "all_reduce(sum)",
                           .tensor = "float32 [3, 4]",
                           .state = State::kWaiting,
                           .waiting_s = 2.5});
  tp.operations.push_back({.from = 0, .to = 4, .number = 7, .call = "send", .comparable = false});
  return status;
}

void expect_equal(const RankStatus& a, const RankStatus& b) {
  EXPECT_EQ(a.last_finished, b.last_finished);
  EXPECT_EQ(a.work, b.work);
  EXPECT_EQ(a.progress_s, b.progress_s);
  EXPECT_EQ(a.groups, b.groups);
}

TEST(Messages, ComeBackAsTheyWere) {
  const auto heartbeat = std::get<Heartbeat>(decode(encode(Heartbeat{some_status()})));
  expect_equal(heartbeat.status, some_status());
  const auto failed =
      std::get<Failed>(decode(encode(Failed{"a\n  try: b", true, true, some_status()})));
  EXPECT_EQ(failed.sentence, "a\n  try: b");
  EXPECT_TRUE(failed.of_communication);
  EXPECT_TRUE(failed.of_configuration);
  expect_equal(failed.status, some_status());
  const Join join{3, 8, 1234, "machine", random_key(), random_key()};
  const auto joined = std::get<Join>(decode(encode(join)));
  EXPECT_EQ(joined.rank, 3);
  EXPECT_EQ(joined.world_size, 8);
  EXPECT_EQ(joined.pid, 1234);
  EXPECT_EQ(joined.machine, "machine");
  EXPECT_EQ(joined.nonce, join.nonce);
  EXPECT_EQ(joined.proof, join.proof);
  EXPECT_EQ(std::get<Stop>(decode(encode(Stop{5, "why"}))).exit_code, 5);
  EXPECT_EQ(std::get<Signal>(decode(encode(Signal{15}))).number, 15);
  EXPECT_EQ(std::get<Ping>(decode(encode(Ping{true, "host"}))).host, "host");
  EXPECT_EQ(std::get<Welcome>(decode(encode(Welcome{random_key(), 9, "m", -1}))).host_rank, -1);
}

TEST(Messages, OfAnyRanksComeBack) {
  for (const std::vector<int>& ranks :
       {std::vector<int>{0}, {7, 6, 5}, {1, 1, 1}, {0, 2, 4, 5, 6, 7, 100, 50}, {3, 1, 2}}) {
    RankStatus status;
    status.groups.push_back({.name = "g", .ranks = ranks});
    const auto back = std::get<Heartbeat>(decode(encode(Heartbeat{status})));
    EXPECT_EQ(back.status.groups.at(0).ranks, ranks);
  }
}

TEST(Messages, CutShortOrGrownAreRefused) {
  const std::string bytes = encode(Heartbeat{some_status()});
  for (size_t size = 0; size < bytes.size(); ++size)
    EXPECT_THROW(decode(std::string_view(bytes).substr(0, size)), CommError) << size;
  EXPECT_THROW(decode(bytes + '\0'), CommError);
}

TEST(Messages, CannotSteerATerminal) {
  const auto stop = std::get<Stop>(decode(encode(Stop{1, "a\x1b[2Jb\nc"})));
  EXPECT_EQ(stop.sentence, "a?[2Jb\nc");
}

TEST(Proof, NeedsTheSecretAndBothNonces) {
  const Key secret = random_key(), nonce = random_key();
  const Join join{1, 2, 3, "m", random_key(), {}};
  const Key good = proof(secret, "client", nonce, join);
  EXPECT_FALSE(equal_keys(proof(random_key(), "client", nonce, join), good));
  EXPECT_FALSE(equal_keys(proof(secret, "server", nonce, join), good));
  EXPECT_FALSE(equal_keys(proof(secret, "client", random_key(), join), good));
  Join other = join;
  other.rank = 0;
  EXPECT_FALSE(equal_keys(proof(secret, "client", nonce, other), good));
  other = join;
  other.nonce = random_key();
  EXPECT_FALSE(equal_keys(proof(secret, "client", nonce, other), good));
}

OperationStart all_reduce() {
  return {.call = "all_reduce(sum)", .dtype = "float32", .num_dims = 2, .dims = {3, 4}};
}

TEST(OperationLog, DescribesWhatIsUnderWay) {
  OperationLog log;
  const int tp = log.add_group("tp", {4, 6});
  const auto first = log.begin(tp, all_reduce());
  log.end(first);
  const auto second = log.begin(tp, {.call = "barrier"});
  const auto third = log.begin(tp, {.call = "split", .note = "dp"});
  log.wait(third);
  const RankStatus status = log.status();
  EXPECT_EQ(status.last_finished, "all_reduce(sum) #1 of group tp of float32 [3, 4]");
  ASSERT_EQ(status.groups.size(), 1U);
  const GroupStatus& group = status.groups[0];
  EXPECT_EQ(group.collectives, 3);
  ASSERT_EQ(group.operations.size(), 3U);
  EXPECT_EQ(group.operations[0].state, State::kDone);
  EXPECT_EQ(group.operations[1].state, State::kOpen);
  EXPECT_EQ(group.operations[1].describe("tp"), "barrier #2 of group tp");
  EXPECT_EQ(group.operations[2].state, State::kWaiting);
  EXPECT_EQ(group.operations[2].describe("tp"), "split into dp #3 of group tp");
  log.leave(third);
  EXPECT_EQ(log.status().groups[0].operations[2].state, State::kOpen);
  log.end(second);
}

TEST(OperationLog, CountsTransfersOfEachPair) {
  OperationLog log; // of world rank 6
  const int pp = log.add_group("pp", {4, 6, 8});
  OperationStart send = all_reduce(), recv = all_reduce();
  send.call = "send";
  recv.call = "recv";
  log.begin_transfer(pp, 1, 2, send);
  log.begin_transfer(pp, 1, 2, send);
  log.begin_transfer(pp, 0, 1, recv);
  const GroupStatus group = log.status().groups[0];
  EXPECT_EQ(group.collectives, 0);
  const std::map<std::pair<int, int>, int64_t> expected = {{{6, 8}, 2}, {{4, 6}, 1}};
  EXPECT_EQ(group.transfers, expected);
  EXPECT_EQ(group.operations[1].describe("pp"),
            "send #2 from rank 6 to rank 8 in group pp of float32 [3, 4]");
  EXPECT_EQ(group.operations[2].describe("pp"),
            "send #1 from rank 4 to rank 6 in group pp of float32 [3, 4]");
}

TEST(OperationLog, KeepsAWaitUnderManyLaterOperationsAndForgetsTheRest) {
  OperationLog log;
  const int group = log.add_group("dp", {0, 1});
  const auto old = log.begin(group, all_reduce());
  for (int i = 0; i < 30; ++i) log.begin(group, all_reduce());
  log.wait(old);
  GroupStatus status = log.status().groups[0];
  EXPECT_EQ(status.operations.size(), 9U);
  EXPECT_EQ(status.operations[0].number, 1);
  for (int i = 0; i < 1000; ++i) log.begin(group, all_reduce());
  log.end(old); // forgotten: nothing happens
  status = log.status().groups[0];
  EXPECT_EQ(status.collectives, 1031);
  EXPECT_EQ(status.operations.size(), 8U);
}

TEST(OperationLog, TellsGroupsOfOneNameApart) {
  OperationLog log;
  log.add_group("tp", {0, 1});
  log.add_group("tp", {0, 1});
  log.add_group("tp", {0, 2});
  const RankStatus status = log.status();
  EXPECT_FALSE(status.groups[0].same_group(status.groups[1]));
  EXPECT_EQ(status.groups[1].ordinal, 1);
  EXPECT_EQ(status.groups[2].ordinal, 0);
}

TEST(OperationLog, MeasuresOnlyTheWaiting) {
  OperationLog log;
  const int group = log.add_group("dp", {0, 1});
  const auto token = log.begin(group, all_reduce());
  EXPECT_EQ(log.status().groups[0].operations[0].waiting_s, 0);
  log.wait(token);
  EXPECT_GE(log.status().groups[0].operations[0].waiting_s, 0);
  EXPECT_LT(log.status().groups[0].operations[0].waiting_s, 60);
}

} // namespace
} // namespace pentatron::comm::control
