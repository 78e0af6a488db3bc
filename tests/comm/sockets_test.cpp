// Ranks that find each other without MPI, and what their sockets carry. Ranks are threads here; the
// transport does not know.
#include "pentatron/base/error.h"
#include "pentatron/comm/backend/sockets/rendezvous.h"
#include "pentatron/comm/backend/sockets/socket_transport.h"
#include "tests/comm/support/transports.h"
#include "tests/support/few_descriptors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <netinet/in.h>
#include <random>
#include <sys/socket.h>
#include <thread>
#include <unistd.h>

namespace pentatron::comm::sockets {
namespace {

using control::Descriptor;
using messages::Transport;
using test::socket_pair;
using test::transports;
using testing::AllOf;
using testing::HasSubstr;
using Clock = std::chrono::steady_clock;

constexpr char kSecret[] = "000102030405060708090a0b0c0d0e0f";

int free_port() {
  int port = 0;
  control::listen(false, port);
  return port;
}

/// Of a job of its own; on one machine, or each on one of its own.
Launch launch(int rank, int size, bool machines, int port) {
  return {.launcher = Launcher::kTorchrun,
          .rank = rank,
          .world_size = size,
          .local_rank = machines ? 0 : rank,
          .local_size = machines ? 1 : size,
          .master_addr = "127.0.0.1",
          .master_port = port};
}

struct Outcome {
  std::vector<std::vector<Descriptor>> sockets; ///< by rank
  std::vector<std::string> errors;              ///< by rank
};

/// The ranks of `present` connect at the same time.
Outcome connect(int size, const std::vector<int>& present, bool machines, double timeout_s,
                const std::function<Environment(int rank)>& environment) {
  Outcome outcome;
  outcome.sockets.resize(static_cast<size_t>(size));
  outcome.errors.resize(static_cast<size_t>(size));
  const int port = free_port();
  std::mutex mutex; // a rank may be there twice
  std::vector<std::thread> threads;
  for (const int rank : present)
    threads.emplace_back([&, rank] {
      const auto r = static_cast<size_t>(rank);
      try {
        auto sockets =
            connect_ranks(launch(rank, size, machines, port), environment(rank), timeout_s);
        const std::lock_guard lock(mutex);
        outcome.sockets[r] = std::move(sockets);
      } catch (const Error& error) {
        const std::lock_guard lock(mutex);
        outcome.errors[r] = error.what();
      }
    });
  for (std::thread& thread : threads) thread.join();
  return outcome;
}

Environment with_secret(int) {
  return {{kSecretVariable, kSecret}};
}

std::vector<int> all(int size) {
  std::vector<int> ranks;
  for (int rank = 0; rank < size; ++rank) ranks.push_back(rank);
  return ranks;
}

class Rendezvous : public testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(, Rendezvous, testing::Bool(), [](const auto& info) {
  return info.param ? "BetweenMachines" : "OnOneMachine";
});

TEST_P(Rendezvous, ConnectsEachTwoRanks) {
  for (const int size : {1, 2, 5}) {
    Outcome outcome = connect(size, all(size), GetParam(), 30, with_secret);
    for (int a = 0; a < size; ++a) {
      ASSERT_EQ(outcome.errors[static_cast<size_t>(a)], "");
      for (int b = 0; b < size; ++b)
        EXPECT_EQ(outcome.sockets[static_cast<size_t>(a)][static_cast<size_t>(b)].valid(), a != b);
    }
    // What a writes to b, b reads from a.
    for (int a = 0; a < size; ++a)
      for (int b = 0; b < size; ++b) {
        if (a == b) continue;
        const int word = 100 * a + b;
        int read = -1;
        const int from = outcome.sockets[static_cast<size_t>(a)][static_cast<size_t>(b)].get();
        const int to = outcome.sockets[static_cast<size_t>(b)][static_cast<size_t>(a)].get();
        ASSERT_EQ(::send(from, &word, sizeof word, 0), static_cast<ssize_t>(sizeof word));
        ASSERT_EQ(::recv(to, &read, sizeof read, MSG_WAITALL | MSG_DONTWAIT),
                  static_cast<ssize_t>(sizeof read));
        EXPECT_EQ(read, word);
      }
  }
}

TEST_P(Rendezvous, NamesTheRanksThatAreMissing) {
  const Outcome outcome = connect(4, {0, 2}, GetParam(), 0.3, with_secret);
  EXPECT_THAT(outcome.errors[0], AllOf(HasSubstr("rank 0 of 4 could not connect to ranks"),
                                       HasSubstr("3 within 0.3 s"), HasSubstr("dist.timeout_s")));
}

TEST_P(Rendezvous, TellsThatARankStartedTwice) {
  const Outcome outcome = connect(2, {1, 1}, GetParam(), 0.3, with_secret);
  EXPECT_NE(outcome.errors[1], "");
}

TEST(RendezvousOnOneMachine, TellsThatTheJobIsThereAlready) {
  const int port = free_port();
  std::string error;
  std::thread waiting(
      [&] { EXPECT_THROW(connect_ranks(launch(0, 2, false, port), {}, 1), CommError); });
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  try {
    connect_ranks(launch(0, 2, false, port), {}, 1);
  } catch (const CommError& caught) {
    error = caught.what();
  }
  waiting.join();
  EXPECT_THAT(error, AllOf(HasSubstr("another process on this machine is rank 0"),
                           HasSubstr("another MASTER_PORT")));
}

TEST(RendezvousBetweenMachines, WantsASecret) {
  const Outcome outcome = connect(2, all(2), true, 1, [](int) { return Environment{}; });
  for (const std::string& error : outcome.errors)
    EXPECT_THAT(error, AllOf(HasSubstr("1 of 2 ranks are on other machines"),
                             HasSubstr("PENTATRON_JOB_SECRET is not set")));
}

TEST(RendezvousBetweenMachines, LetsInNobodyWithAnotherSecret) {
  const Outcome outcome = connect(2, all(2), true, 1, [](int rank) {
    return Environment{{kSecretVariable, rank == 0 ? kSecret : "ff0102030405060708090a0b0c0d0e0f"}};
  });
  EXPECT_THAT(outcome.errors[0], HasSubstr("could not connect to rank 1"));
  EXPECT_THAT(outcome.errors[1], HasSubstr("could not connect to rank 0"));
}

TEST(RendezvousBetweenMachines, IsNotDisturbedByStrangers) {
  const int port = free_port();
  std::atomic<bool> stop = false;
  std::thread strangers([&] { // connect, send noise or nothing, go
    std::mt19937 random(1);
    while (!stop) {
      try {
        const Descriptor socket =
            control::connect(control::make_address(fmt::format("127.0.0.1:{}", port), kSecret), 1);
        std::string noise(random() % 300, '\0');
        for (char& c : noise) c = static_cast<char>(random());
        [[maybe_unused]] const ssize_t sent =
            ::send(socket.get(), noise.data(), noise.size(), MSG_NOSIGNAL);
      } catch (const CommError&) {
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  });
  std::vector<std::thread> ranks;
  std::atomic<int> connected = 0;
  for (int rank = 0; rank < 3; ++rank)
    ranks.emplace_back([&, rank] {
      std::this_thread::sleep_for(std::chrono::milliseconds(100 * rank));
      connect_ranks(launch(rank, 3, true, port), with_secret(rank), 60);
      ++connected;
    });
  for (std::thread& rank : ranks) rank.join();
  stop = true;
  strangers.join();
  EXPECT_EQ(connected, 3);
}

/// What rank `rank` of 2 says if it can open `spare` files and then somebody else connects to it.
std::string error_with_few_descriptors(int rank, bool machines, int spare) {
  const int port = free_port();
  const Descriptor peer(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  std::string error;
  std::atomic<bool> ended = false;
  const test::FewDescriptors few(spare);
  std::thread thread([&] {
    try {
      connect_ranks(launch(rank, 2, machines, port), with_secret(rank), 5);
    } catch (const Error& caught) {
      error = caught.what();
    }
    ended = true;
  });
  sockaddr_in to{.sin_family = AF_INET,
                 .sin_port = htons(static_cast<uint16_t>(port)),
                 .sin_addr = {htonl(INADDR_LOOPBACK)},
                 .sin_zero = {}};
  while (!ended && ::connect(peer.get(), reinterpret_cast<sockaddr*>(&to), sizeof to) != 0)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  thread.join();
  return error;
}

TEST(RendezvousOutOfFiles, TellsThatNoFileCanBeOpened) {
  const auto tells = AllOf(HasSubstr("open files"), HasSubstr("try: ulimit -n"));
  EXPECT_THAT(error_with_few_descriptors(0, true, 0), tells) << "the listener";
  EXPECT_THAT(error_with_few_descriptors(0, true, 1), tells) << "the connection of rank 1";
  EXPECT_THAT(error_with_few_descriptors(1, true, 1), tells) << "the connection to rank 0";
  EXPECT_THAT(error_with_few_descriptors(0, false, 0), tells);
  EXPECT_THAT(error_with_few_descriptors(1, false, 1), tells);
}

/// Moves messages until all of `ids` have ended, and returns with what error each did.
std::map<int64_t, std::string> finish(Transport& transport, size_t count, double limit_s = 60) {
  std::map<int64_t, std::string> ended;
  const auto begin = Clock::now();
  std::vector<Transport::Completion> some;
  while (ended.size() < count && Clock::now() - begin < std::chrono::duration<double>(limit_s)) {
    some.clear();
    transport.test(some);
    for (const auto& one : some) EXPECT_TRUE(ended.emplace(one.id, one.error).second);
    if (some.empty()) transport.pause(std::chrono::milliseconds(1));
  }
  EXPECT_EQ(ended.size(), count);
  return ended;
}

TEST(SocketTransport, CarriesRandomMessagesInTheOrderOfTheirTags) {
  constexpr int kRanks = 3, kTags = 4, kMessages = 150;
  auto ranks = transports(kRanks);
  // Message n from a to b under tag t has this size and content.
  const auto content = [](int a, int b, int tag, int n) {
    std::mt19937 random(static_cast<unsigned>(((a * 10 + b) * 10 + tag) * 1000 + n));
    const size_t sizes[] = {0, 1, 17, 3000, 70'000, 900'000};
    std::vector<std::byte> bytes(sizes[random() % (n % 25 == 0 ? 6 : 5)]);
    for (std::byte& one : bytes) one = static_cast<std::byte>(random());
    return bytes;
  };
  std::vector<std::thread> threads;
  for (int me = 0; me < kRanks; ++me)
    threads.emplace_back([&, me] {
      struct Message {
        bool sends;
        int peer, tag, n;
      };
      // Sends and receives in an order of this rank's own that keeps the order of each tag.
      std::vector<Message> order;
      for (int peer = 0; peer < kRanks; ++peer)
        for (int tag = 1; tag <= kTags && peer != me; ++tag)
          for (int n = 0; n < kMessages / kTags; ++n) {
            order.push_back({true, peer, tag, n});
            order.push_back({false, peer, tag, n});
          }
      std::mt19937 random(static_cast<unsigned>(me));
      std::shuffle(order.begin(), order.end(), random);
      std::map<std::tuple<bool, int, int>, int> next;
      for (Message& one : order) one.n = next[{one.sends, one.peer, one.tag}]++;
      std::vector<std::vector<std::byte>> buffers;
      for (const Message& one : order)
        buffers.push_back(one.sends ? content(me, one.peer, one.tag, one.n)
                                    : std::vector<std::byte>(1'000'000));
      std::map<int64_t, std::string> ended;
      std::vector<Transport::Completion> some;
      Transport& transport = *ranks[static_cast<size_t>(me)];
      for (size_t i = 0; i < order.size(); ++i) {
        const auto id = static_cast<int64_t>(i);
        if (order[i].sends)
          transport.send(order[i].peer, order[i].tag, buffers[i].data(),
                         static_cast<int64_t>(buffers[i].size()), id);
        else
          transport.receive(order[i].peer, order[i].tag, buffers[i].data(),
                            static_cast<int64_t>(buffers[i].size()), id);
        if (i % 7 == 0) transport.test(some);
      }
      for (const auto& one : some) ended.emplace(one.id, one.error);
      ended.merge(finish(transport, order.size() - ended.size()));
      for (size_t i = 0; i < order.size(); ++i) {
        EXPECT_EQ(ended.at(static_cast<int64_t>(i)), "");
        if (order[i].sends) continue;
        const auto expected = content(order[i].peer, me, order[i].tag, order[i].n);
        EXPECT_TRUE(std::equal(expected.begin(), expected.end(), buffers[i].begin()))
            << "message " << order[i].n << " from " << order[i].peer << " to " << me << " tag "
            << order[i].tag;
      }
    });
  for (std::thread& thread : threads) thread.join();
}

TEST(SocketTransport, ReceivesFromAnyRank) {
  auto ranks = transports(3);
  int heard = 0;
  for (int round = 0; round < 4; ++round) {
    const int from = 1 + round % 2, word = 40 + round;
    if (round < 2) ranks[0]->receive(Transport::kAnyRank, 0, &heard, sizeof heard, round);
    ranks[static_cast<size_t>(from)]->send(0, 0, &word, sizeof word, 0);
    finish(*ranks[static_cast<size_t>(from)], 1);
    if (round >= 2) { // it is there before anybody asks
      std::vector<Transport::Completion> none;
      ranks[0]->test(none);
      EXPECT_TRUE(none.empty());
      ranks[0]->receive(Transport::kAnyRank, 0, &heard, sizeof heard, round);
    }
    EXPECT_EQ(finish(*ranks[0], 1).begin()->first, round);
    EXPECT_EQ(heard, word);
  }
}

TEST(SocketTransport, CancelsAReceiveThatWaits) {
  auto ranks = transports(2);
  int a = 0, b = 0;
  ranks[0]->receive(1, 5, &a, sizeof a, 1);
  ranks[0]->receive(1, 5, &b, sizeof b, 2);
  ranks[0]->cancel(1);
  EXPECT_EQ(finish(*ranks[0], 1).begin()->first, 1);
  const int word = 7;
  ranks[1]->send(0, 5, &word, sizeof word, 0);
  finish(*ranks[1], 1);
  EXPECT_EQ(finish(*ranks[0], 1).begin()->first, 2);
  EXPECT_EQ(a, 0);
  EXPECT_EQ(b, 7);
}

TEST(SocketTransport, DeliversWhatADeadRankHadSentAndFailsTheRestLater) {
  auto ranks = transports(2);
  const std::vector<int> words(1000, 9);
  std::vector<int> received(1000), never(1000);
  ranks[1]->send(0, 3, words.data(), 4000, 0);
  finish(*ranks[1], 1);
  ranks[1]->close(false);
  const auto begin = Clock::now();
  ranks[0]->receive(1, 3, received.data(), 4000, 1);
  ranks[0]->receive(1, 3, never.data(), 4000, 2);
  ranks[0]->send(1, 3, words.data(), 4000, 3);
  const auto ended = finish(*ranks[0], 3, 20);
  EXPECT_EQ(ended.at(1), "");
  EXPECT_EQ(received, words);
  EXPECT_THAT(ended.at(2), HasSubstr("closed the connection"));
  EXPECT_GT(Clock::now() - begin, std::chrono::seconds(1)); // the monitor can ask until then
}

TEST(SocketTransport, RefusesWhatIsNoMessageOrTooLong) {
  auto [ours, theirs] = socket_pair();
  std::vector<Descriptor> peers(2);
  peers[1] = std::move(ours);
  const auto transport = make_transport(0, std::move(peers));
  const std::string noise(64, 'x');
  ASSERT_EQ(::send(theirs.get(), noise.data(), noise.size(), 0), 64);
  std::vector<Transport::Completion> none;
  EXPECT_THROW(transport->test(none), CommError);

  auto ranks = transports(2);
  int small = 0;
  const std::vector<int> words(10, 1);
  ranks[0]->receive(1, 1, &small, sizeof small, 0);
  ranks[1]->send(0, 1, words.data(), 40, 0);
  finish(*ranks[1], 1);
  EXPECT_THROW(ranks[0]->test(none), CommError);
}

} // namespace
} // namespace pentatron::comm::sockets
