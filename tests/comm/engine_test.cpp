// What ranks hear of each other's end when messages between them take different times.
#include "pentatron/base/error.h"
#include "pentatron/comm/backend/messages/message_backend.h"
#include "pentatron/comm/collectives.h"
#include "tests/comm/support/transports.h"
#include "tests/support/ranks.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <functional>
#include <thread>

namespace pentatron::comm::messages {
namespace {

using pentatron::test::error_of;
using Clock = std::chrono::steady_clock;
using Kind = Outcome::Kind;

constexpr auto kDelay = std::chrono::milliseconds(200);

/// Holds back for a while what its rank tells `slow_to` about its end.
class SlowNotices final : public Transport {
 public:
  SlowNotices(std::unique_ptr<Transport> inner, int slow_to)
      : inner_(std::move(inner)), slow_to_(slow_to) {}

  const char* name() const override { return inner_->name(); }
  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  int largest_tag() const override { return inner_->largest_tag(); }
  void send(int to, int tag, const void* data, int64_t bytes, int64_t id) override {
    constexpr int kNotices = 0; // groups have the other tags
    if (to != slow_to_ || tag != kNotices) return inner_->send(to, tag, data, bytes, id);
    held_ = [=, this] { inner_->send(to, tag, data, bytes, id); };
    due_ = Clock::now() + kDelay;
  }
  void receive(int from, int tag, void* data, int64_t bytes, int64_t id) override {
    inner_->receive(from, tag, data, bytes, id);
  }
  void cancel(int64_t id) override { inner_->cancel(id); }
  void test(std::vector<Completion>& ended) override {
    if (held_ && Clock::now() > due_) std::exchange(held_, nullptr)();
    inner_->test(ended);
  }
  void pause(Clock::duration longest) override { inner_->pause(longest); }
  void close(bool all_left) override { inner_->close(all_left); }

 private:
  const std::unique_ptr<Transport> inner_;
  const int slow_to_;
  std::function<void()> held_;
  Clock::time_point due_;
};

/// What rank 2 of 3 hears in a sum that rank 1 fails to join, when rank 0 tells of its own end
/// (`how`) at once and rank 1 late.
std::string heard_by_the_last(const std::function<Kind(const Group& world, Engine& engine)>& how) {
  std::string heard;
  std::vector<std::unique_ptr<Transport>> transports = test::transports(3);
  transports[1] = std::make_unique<SlowNotices>(std::move(transports[1]), 2);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 3; ++rank)
    threads.emplace_back([&, rank] {
      const auto engine = std::make_shared<Engine>(std::move(transports[static_cast<size_t>(rank)]),
                                                   MessageOptions{});
      {
        const Group world(std::make_shared<MessageBackend>(engine, engine->begin_run()));
        Outcome outcome{Kind::kLeft, {}};
        if (rank == 0) outcome.kind = how(world, *engine);
        if (rank == 1) outcome = {Kind::kFailed, {FailureKind::kData, "file x.bin is damaged"}};
        if (rank == 2) heard = error_of([&] { all_reduce_(at::ones({3}), ReduceOp::kSum, world); });
        const auto failure = engine->end_run(outcome);
        EXPECT_TRUE(failure && failure->first == 1);
      }
      engine->close();
    });
  for (std::thread& thread : threads) thread.join();
  return heard;
}

TEST(EndOfARun, IsNotBlamedOnARankThatLeftBecauseAnotherFailed) {
  const std::string heard = heard_by_the_last([](const Group& world, Engine& engine) {
    error_of([&] { recv(at::ones({3}), 1, world); });
    EXPECT_TRUE(engine.aborted());
    return Kind::kLeft;
  });
  EXPECT_EQ(heard,
            "rank 2 left all_reduce #1 of group world because rank 1 of 3 failed: file x.bin "
            "is damaged");
}

TEST(EndOfARun, IsTheReasonIfTheRankHadDoneItsWork) {
  const std::string heard =
      heard_by_the_last([](const Group&, Engine&) { return Kind::kFinished; });
  EXPECT_EQ(heard, "rank 0 finished while ranks 2 wait in all_reduce #1 of group world");
}

} // namespace
} // namespace pentatron::comm::messages
