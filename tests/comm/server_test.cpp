// The monitor and its clients inside one process, over real sockets.
#include "pentatron/base/error.h"
#include "pentatron/comm/control/client.h"
#include "pentatron/comm/control/server.h"
#include "tests/support/few_descriptors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <thread>

namespace pentatron::comm::control {
namespace {

using namespace std::chrono_literals;
using testing::AllOf;
using testing::HasSubstr;

/// What a client's process would have been ended with.
struct End {
  std::mutex mutex;
  std::condition_variable changed;
  std::optional<std::string> sentence;
  bool monitor_lost = false;

  auto hook() {
    return [this](int, const std::string& text, bool lost) {
      const std::lock_guard lock(mutex);
      sentence = text;
      monitor_lost = lost;
      changed.notify_all();
    };
  }
  std::string wait() {
    std::unique_lock lock(mutex);
    changed.wait_for(lock, 20s, [this] { return sentence.has_value(); });
    return sentence.value_or("no end");
  }
};

struct TestRank {
  std::shared_ptr<OperationLog> log = std::make_shared<OperationLog>();
  std::unique_ptr<End> end = std::make_unique<End>();
  int group = 0;
  std::unique_ptr<Client> client;

  TestRank(const Address& address, int rank, int world_size, double timeout_s = 60)
      : client(std::make_unique<Client>(ClientOptions{.address = address,
                                                      .rank = rank,
                                                      .world_size = world_size,
                                                      .heartbeat_s = 0.05,
                                                      .timeout_s = timeout_s,
                                                      .on_stop = end->hook()},
                                        log)) {
    std::vector<int> members(world_size);
    for (int i = 0; i < world_size; ++i) members[i] = i;
    group = log->add_group("world", members);
  }
  void wait_in(const char* call, int64_t size = 3) {
    OperationStart start{.call = call, .dtype = "float32", .num_dims = 1, .dims = {size}};
    log->wait(log->begin(group, start));
  }
};

ServerOptions options(int ranks, double timeout_s = 60) {
  // The ranks of these tests share the server's process: it must never be killed.
  return {.ranks = ranks, .timeout_s = timeout_s, .heartbeat_s = 0.05, .grace_s = 1000};
}

TEST(ControlServer, EndsWhenAllRanksHaveFinished) {
  Server server(options(3));
  std::vector<TestRank> ranks;
  for (int rank = 0; rank < 3; ++rank) ranks.emplace_back(server.address(), rank, 3);
  EXPECT_FALSE(server.over());
  for (TestRank& rank : ranks) rank.client->finish();
  server.wait_until_over();
  EXPECT_FALSE(server.verdict());
}

TEST(ControlServer, TellsEveryRankWhoIsMissing) {
  Server server(options(3, /*timeout_s=*/0.5));
  std::vector<TestRank> ranks;
  for (int rank = 0; rank < 3; ++rank) ranks.emplace_back(server.address(), rank, 3);
  ranks[0].wait_in("all_reduce(sum)");
  ranks[2].wait_in("all_reduce(sum)");
  for (TestRank& rank : ranks)
    EXPECT_THAT(rank.end->wait(),
                AllOf(HasSubstr("rank 1 has not arrived at all_reduce(sum) #1 of group world of "
                                "float32 [3] for 0."),
                      HasSubstr("ranks 0, 2 wait; rank 1 has finished no operation yet")));
  EXPECT_EQ(server.verdict()->rank, 1);
}

TEST(ControlServer, TellsADisagreementAtOnce) {
  Server server(options(2));
  std::vector<TestRank> ranks;
  for (int rank = 0; rank < 2; ++rank) ranks.emplace_back(server.address(), rank, 2);
  ranks[0].wait_in("all_reduce(sum)");
  ranks[1].wait_in("all_reduce(sum)", 4);
  EXPECT_THAT(ranks[0].end->wait(),
              HasSubstr("all_reduce #1 of group world differs between ranks"));
}

TEST(ControlServer, PassesOnARanksOwnError) {
  Server server(options(2));
  TestRank first(server.address(), 0, 2), second(server.address(), 1, 2);
  second.client->fail({FailureKind::kData, "file x.bin is damaged\n  try: another"});
  EXPECT_EQ(first.end->wait(), "rank 1 of 2: file x.bin is damaged\n  try: another");
  EXPECT_EQ(server.verdict()->kind, Verdict::Kind::kFailed);
  EXPECT_EQ(server.verdict()->exit_code, 1);
}

TEST(ControlServer, EndsARunThatCannotBeginWithTheExitCodeOfAWrongConfiguration) {
  Server server(options(2));
  TestRank first(server.address(), 0, 2), second(server.address(), 1, 2);
  second.client->fail({FailureKind::kConfig, "logger.dir=a is in use"});
  EXPECT_EQ(first.end->wait(), "rank 1 of 2: logger.dir=a is in use");
  EXPECT_EQ(server.verdict()->exit_code, 2);
}

TEST(ControlServer, PrefersTheCauseToAnErrorOfCommunication) {
  Server server(options(3));
  TestRank first(server.address(), 0, 3), second(server.address(), 1, 3),
      third(server.address(), 2, 3);
  std::thread failing([&] { second.client->fail({FailureKind::kComm, "a peer has gone"}); });
  third.client->fail({FailureKind::kData, "file x.bin is damaged"});
  failing.join();
  EXPECT_EQ(first.end->wait(), "rank 2 of 3: file x.bin is damaged");
}

TEST(ControlServer, NamesARankThatNeverJoins) {
  ServerOptions with = options(2);
  with.join_timeout_s = 0.2;
  Server server(with);
  TestRank first(server.address(), 0, 2);
  EXPECT_THAT(first.end->wait(), HasSubstr("rank 1 did not join within"));
}

TEST(ControlServer, RefusesASecondOfOneRankAndAnotherWorld) {
  Server server(options(2));
  TestRank first(server.address(), 0, 2);
  TestRank again(server.address(), 0, 2);
  EXPECT_EQ(again.end->wait(), "rank 0 tried to join twice");
  EXPECT_EQ(first.end->wait(), "rank 0 tried to join twice");
  Server small(options(1));
  TestRank big(small.address(), 0, 4);
  EXPECT_EQ(big.end->wait(), "rank 0 of 4 tried to join a run of 1 ranks");
}

TEST(ControlServer, DropsWhoDoesNotKnowTheSecret) {
  Server server(options(1));
  Address wrong = server.address();
  wrong.secret[3] ^= 1;
  EXPECT_THROW(TestRank(wrong, 0, 1), CommError);
  TestRank right(server.address(), 0, 1);
  right.client->finish();
  server.wait_until_over();
  EXPECT_FALSE(server.verdict());
}

/// Whether the server closes the connection within 5 s.
bool is_closed(const Descriptor& fd) {
  std::array<char, 4096> buffer;
  pollfd wait{fd.get(), POLLIN, 0};
  while (::poll(&wait, 1, 5000) == 1)
    if (::recv(fd.get(), buffer.data(), buffer.size(), 0) <= 0) return true;
  return false;
}

TEST(ControlServer, DropsForeignBytes) {
  Server server(options(1));
  for (const std::string& bytes :
       {std::string("GET / HTTP/1.0\r\n\r\n"), std::string(100'000, '\xff'), std::string(64, '\0'),
        std::string("\x0a\0\0\0", 4) + encode(Stop{0, "x"}) + std::string(12, '\0')}) {
    const Descriptor fd = connect(server.address(), 5);
    ::send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    EXPECT_TRUE(is_closed(fd)) << bytes.substr(0, 20);
  }
  TestRank right(server.address(), 0, 1);
  right.client->finish();
  server.wait_until_over();
  EXPECT_FALSE(server.verdict());
}

TEST(ControlServer, DropsAMessageWithoutTheConnectionsKey) {
  // A rank that has joined properly and then sends what an attacker could add to its stream.
  Server server(options(1));
  const Address address = server.address();
  Connection connection(connect(address, 5), Connection::Side::kClient);
  const auto next = [&] {
    while (true) {
      connection.receive();
      if (auto message = connection.next()) return *message;
      pollfd wait{connection.fd(), POLLIN, 0};
      if (::poll(&wait, 1, 5000) != 1) raise<CommError>("no answer");
    }
  };
  const Key nonce = std::get<Hello>(next()).nonce;
  Join join{0, 1, 0, "", random_key(), {}};
  join.proof = proof(address.secret, "client", nonce, join);
  connection.send(join);
  const auto welcome = std::get<Welcome>(next());
  EXPECT_TRUE(equal_keys(welcome.proof, proof(address.secret, "server", nonce, join)));
  connection.authenticate(random_key());
  connection.send(Finished{});
  server.wait_until_over();
  EXPECT_EQ(server.verdict()->kind, Verdict::Kind::kLost);
}

TEST(ControlServer, RefusesRanksBeyondTheWorld) {
  Server server(options(1));
  TestRank rank(server.address(), 0, 1);
  rank.log->add_group("evil", {0, 77});
  server.wait_until_over();
  EXPECT_EQ(server.verdict()->kind, Verdict::Kind::kLost);
}

/// Connects without a new descriptor.
void connect_with(const Descriptor& socket, const Address& address) {
  sockaddr_in to{.sin_family = AF_INET,
                 .sin_port = htons(static_cast<uint16_t>(address.port)),
                 .sin_addr = {htonl(INADDR_LOOPBACK)},
                 .sin_zero = {}};
  ASSERT_EQ(::connect(socket.get(), reinterpret_cast<sockaddr*>(&to), sizeof to), 0);
}

TEST(ControlServer, SaysThatItOrAClientHasNoDescriptorLeft) {
  const auto said = [](int spare, const std::function<void()>& start) {
    const test::FewDescriptors few(spare);
    try {
      start();
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  const auto tells =
      AllOf(HasSubstr("cannot open another file or connection"), HasSubstr("ulimit"));
  EXPECT_THAT(said(1, [] { Server server(options(1)); }), tells) << "beside the listener";
  Server server(options(1));
  EXPECT_THAT(said(2, [&] { TestRank rank(server.address(), 0, 1); }), tells)
      << "beside the two ends of a connection";
}

TEST(ControlServer, EndsTheStartWhenItCannotTakeAConnection) {
  Server server(options(2));
  TestRank first(server.address(), 0, 2);
  const Descriptor second(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  while (server.joined() < 1) std::this_thread::sleep_for(1ms);
  {
    const test::FewDescriptors few(0);
    connect_with(second, server.address());
    EXPECT_THAT(first.end->wait(), AllOf(HasSubstr("open files"), HasSubstr("ulimit")));
  }
  EXPECT_EQ(server.verdict()->rank, 1);
}

TEST(ControlServer, GoesOnWhenAStrangerCannotBeTakenAndTakesItLater) {
  Server server(options(1));
  TestRank rank(server.address(), 0, 1);
  Descriptor stranger(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  while (server.joined() < 1) std::this_thread::sleep_for(1ms);
  {
    const test::FewDescriptors few(0);
    connect_with(stranger, server.address());
    std::this_thread::sleep_for(50ms); // the server meets it meanwhile
  }
  char hello = 0; // the server speaks first
  pollfd wait{stranger.get(), POLLIN, 0};
  EXPECT_EQ(::poll(&wait, 1, 20000), 1);
  EXPECT_EQ(::recv(stranger.get(), &hello, 1, 0), 1);
  rank.client->finish();
  server.wait_until_over();
  EXPECT_FALSE(server.verdict());
}

TEST(ControlServer, ListensOnLoopbackOnly) {
  int port = 0;
  const Descriptor fd = listen(false, port);
  EXPECT_GT(port, 0);
  EXPECT_NO_THROW(connect({.host = "127.0.0.1", .port = port}, 5));
  EXPECT_THROW(connect({.host = "127.0.0.2", .port = port}, 5), CommError);
}

TEST(ControlClient, TellsWhenItsMonitorIsGone) {
  auto server = std::make_unique<Server>(options(1));
  TestRank rank(server->address(), 0, 1);
  server.reset();
  EXPECT_EQ(rank.end->wait(), "the process that supervises the ranks has ended");
  EXPECT_TRUE(rank.end->monitor_lost);
}

TEST(ControlClient, NamesTheHostRankWhenThatIsGone) {
  ServerOptions hosted = options(2);
  hosted.host_rank = 0;
  auto server = std::make_unique<Server>(hosted);
  TestRank host(server->address(), 0, 2), other(server->address(), 1, 2);
  host.wait_in("barrier");
  std::this_thread::sleep_for(500ms); // for a heartbeat of the host and the ping that follows
  server.reset();
  EXPECT_THAT(other.end->wait(),
              AllOf(HasSubstr("rank 0 died"), HasSubstr("while in barrier #1 of group world")));
}

TEST(ControlClient, ThrowsWhereNobodyListens) {
  int port = 0;
  listen(false, port);
  EXPECT_THROW(TestRank({.host = "127.0.0.1", .port = port}, 0, 1), CommError);
  EXPECT_THROW(TestRank({.host = "no.such.host.invalid", .port = 1}, 0, 1), CommError);
}

TEST(Address, IsReadStrictly) {
  const std::string secret = to_hex(random_key());
  EXPECT_EQ(make_address("::1:80", secret).host, "::1");
  EXPECT_EQ(make_address("node1:4711", secret).port, 4711);
  for (const char* text : {"", "node1", ":80", "node1:", "node1:0", "node1:65536", "node1:8x"})
    EXPECT_THROW(make_address(text, secret), ConfigError) << text;
  EXPECT_THROW(make_address("node1:80", "1234"), ConfigError);
}

TEST(Silence, IsShortForStoppedProcessesAndBoundedByTheTimeout) {
  EXPECT_LE(silence_limits(1, 600).stopped_s, 3);
  EXPECT_GE(silence_limits(1, 600).unknown_s, 10);
  EXPECT_LE(silence_limits(1, 5).unknown_s, 5);
}

} // namespace
} // namespace pentatron::comm::control
