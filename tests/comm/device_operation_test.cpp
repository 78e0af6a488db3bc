// Operations of GPUs, with events that the test sets: what ranks report of them, and that a hang or
// an error there is told by the sentence that ranks on CPUs get.
#include "pentatron/comm/device_operation.h"

#include "pentatron/base/error.h"
#include "pentatron/comm/backend/nccl/connections.h"
#include "pentatron/comm/collectives.h"
#include "pentatron/comm/control/client.h"
#include "pentatron/comm/control/monitored_backend.h"
#include "pentatron/comm/control/server.h"
#include "pentatron/comm/rank_threads.h"
#include "tests/support/ranks.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <stdexcept>
#include <thread>

namespace pentatron::comm::control {
namespace {

using namespace std::chrono_literals;
using testing::AllOf;
using testing::HasSubstr;
using Progress = DeviceOperation::Progress;
using State = OperationStatus::State;

class FakeOperation final : public DeviceOperation {
 public:
  explicit FakeOperation(Progress at) : at_(at) {}
  Progress progress() noexcept override { return at_; }
  void reach(Progress at) { at_ = at; }

 private:
  std::atomic<Progress> at_;
};

class FakeGroup final : public DeviceGroup {
 public:
  std::string error() override {
    const std::lock_guard lock(mutex_);
    return error_;
  }
  void abort() override { ++aborts; }
  void fail(const std::string& error) {
    const std::lock_guard lock(mutex_);
    error_ = error;
  }
  std::atomic<int> aborts = 0;

 private:
  std::mutex mutex_;
  std::string error_;
};

OperationStart sum_of_three() {
  return {.call = "all_reduce(sum)", .dtype = "float32", .num_dims = 1, .dims = {3}};
}

/// Begun on the rank's host, and on its GPU as far as `at`.
std::shared_ptr<FakeOperation> start(OperationLog& log, int group, Progress at,
                                     const OperationStart& what = sum_of_three()) {
  auto operation = std::make_shared<FakeOperation>(at);
  log.follow({log.begin(group, what)}, operation);
  return operation;
}

TEST(DeviceOperations, CountAsWaitedForWhileTheyRun) {
  OperationLog log;
  const int tp = log.add_group("tp", {0, 1});
  const auto first = start(log, tp, Progress::kQueued), second = start(log, tp, Progress::kQueued);
  GroupStatus status = log.status().groups[0];
  EXPECT_EQ(status.collectives, 2);
  EXPECT_EQ(status.operations[0].state, State::kQueued);
  EXPECT_EQ(status.operations[1].state, State::kOpen) << "only the first is asked";
  first->reach(Progress::kRunning);
  EXPECT_EQ(log.status().groups[0].operations[0].state, State::kWaiting);
  std::this_thread::sleep_for(20ms);
  EXPECT_GE(log.status().groups[0].operations[0].waiting_s, 0.02);
  first->reach(Progress::kDone);
  second->reach(Progress::kRunning);
  const RankStatus later = log.status();
  EXPECT_EQ(later.last_finished, "all_reduce(sum) #1 of group tp of float32 [3]");
  EXPECT_EQ(later.groups[0].operations[0].state, State::kDone);
  EXPECT_EQ(later.groups[0].operations[1].state, State::kWaiting);
}

TEST(DeviceOperations, AreKnownHoweverFarTheHostIsAhead) {
  OperationLog log;
  const int tp = log.add_group("tp", {0, 1});
  const auto running = start(log, tp, Progress::kRunning);
  for (int i = 0; i < 500; ++i) start(log, tp, Progress::kQueued);
  const GroupStatus status = log.status().groups[0];
  EXPECT_EQ(status.operations[0].number, 1);
  EXPECT_EQ(status.operations[0].state, State::kWaiting);
  EXPECT_EQ(status.collectives, 501);
}

TEST(DeviceOperations, OfOneCallEndTogether) {
  OperationLog log;
  const int pp = log.add_group("pp", {4, 6});
  OperationStart send = sum_of_three(), recv = sum_of_three();
  send.call = "send";
  recv.call = "recv";
  const auto operation = std::make_shared<FakeOperation>(Progress::kRunning);
  log.follow({log.begin_transfer(pp, 0, 1, send), log.begin_transfer(pp, 1, 0, recv)}, operation);
  GroupStatus status = log.status().groups[0];
  EXPECT_EQ(status.operations[0].state, State::kWaiting);
  EXPECT_EQ(status.operations[1].state, State::kWaiting);
  EXPECT_EQ(status.operations[1].describe("pp"),
            "send #1 from rank 6 to rank 4 in group pp of float32 [3]");
  operation->reach(Progress::kDone);
  status = log.status().groups[0];
  EXPECT_EQ(status.operations[0].state, State::kDone);
  EXPECT_EQ(status.operations[1].state, State::kDone);
}

/// A rank of this process with its control thread.
struct ClientRank {
  std::shared_ptr<OperationLog> log = std::make_shared<OperationLog>();
  std::shared_ptr<FakeGroup> device = std::make_shared<FakeGroup>();
  std::mutex mutex;
  std::condition_variable changed;
  std::optional<std::string> sentence;
  int tp = 0, dp = 0;
  std::unique_ptr<Client> client;

  ClientRank(const Server& server, int rank, int world_size) {
    client = std::make_unique<Client>(ClientOptions{.address = server.address(),
                                                    .rank = rank,
                                                    .world_size = world_size,
                                                    .heartbeat_s = 0.05,
                                                    .on_stop =
                                                        [this](int, const std::string& text, bool) {
                                                          const std::lock_guard lock(mutex);
                                                          sentence = text;
                                                          changed.notify_all();
                                                        }},
                                      log);
    std::vector<int> members(world_size);
    for (int i = 0; i < world_size; ++i) members[i] = i;
    tp = log->add_group("tp", members);
    dp = log->add_group("dp", members);
    log->add_device(tp, device);
  }
  std::string end() {
    std::unique_lock lock(mutex);
    changed.wait_for(lock, 20s, [this] { return sentence.has_value(); });
    return sentence.value_or("no end");
  }
};

TEST(DeviceHang, NamesARankWhoseHostHasNotComeThere) {
  Server server({.ranks = 3, .timeout_s = 0.5, .heartbeat_s = 0.05, .grace_s = 1000});
  ClientRank first(server, 0, 3), second(server, 1, 3), third(server, 2, 3);
  start(*third.log, third.tp, Progress::kDone);
  for (ClientRank* rank : {&first, &second}) {
    start(*rank->log, rank->tp, Progress::kDone);
    start(*rank->log, rank->tp, Progress::kRunning);
  }
  EXPECT_THAT(first.end(),
              AllOf(HasSubstr("rank 2 has not arrived at all_reduce(sum) #2 of group tp of float32 "
                              "[3] for 0."),
                    HasSubstr("ranks 0, 1 wait; rank 2 last finished all_reduce(sum) #1")));
  EXPECT_GE(first.device->aborts, 1) << "threads that wait for the GPU go on";
  third.end();
}

TEST(DeviceHang, NamesARankWhoseGpuHasNotComeThere) {
  Server server({.ranks = 2, .timeout_s = 0.5, .heartbeat_s = 0.05, .grace_s = 1000});
  ClientRank first(server, 0, 2), second(server, 1, 2);
  start(*first.log, first.tp, Progress::kRunning);
  start(*second.log, second.tp, Progress::kQueued); // behind a kernel that does not end
  EXPECT_THAT(first.end(), HasSubstr("rank 1 has not arrived at all_reduce(sum) #1 of group tp of "
                                     "float32 [3] for 0."));
  EXPECT_THAT(first.end(), HasSubstr("rank 0 waits; rank 1 has it in its GPU's queue and has "
                                     "finished no operation yet"));
}

TEST(DeviceHang, NamesStreamsThatWaitForEachOther) {
  Server server({.ranks = 2, .timeout_s = 0.5, .heartbeat_s = 0.05, .grace_s = 1000});
  ClientRank first(server, 0, 2), second(server, 1, 2);
  start(*first.log, first.tp, Progress::kRunning);
  start(*first.log, first.dp, Progress::kQueued);
  start(*second.log, second.dp, Progress::kRunning);
  start(*second.log, second.tp, Progress::kQueued);
  EXPECT_THAT(first.end(), AllOf(HasSubstr("ranks wait for each other: "),
                                 HasSubstr("rank 0 in all_reduce(sum) #1 of group tp"),
                                 HasSubstr("rank 1 in all_reduce(sum) #1 of group dp")));
}

TEST(DeviceError, EndsTheRunWithGroupAndOperation) {
  Server server({.ranks = 2, .timeout_s = 60, .heartbeat_s = 0.05, .grace_s = 1000});
  ClientRank first(server, 0, 2), second(server, 1, 2);
  start(*second.log, second.tp, Progress::kRunning);
  second.device->fail("NCCL: unhandled system error");
  EXPECT_EQ(first.end(), "rank 1 of 2: the GPU communication of group tp failed at all_reduce(sum) "
                         "#1 of group tp of float32 [3]: NCCL: unhandled system error");
}

TEST(DeviceError, GivesWayToTheDisagreementThatCausedIt) {
  Server server({.ranks = 2, .timeout_s = 60, .heartbeat_s = 0.05, .grace_s = 1000});
  ClientRank first(server, 0, 2), second(server, 1, 2);
  OperationStart other = sum_of_three();
  other.dims = {4};
  start(*first.log, first.tp, Progress::kRunning);
  start(*second.log, second.tp, Progress::kRunning, other);
  second.device->fail("NCCL: invalid usage");
  EXPECT_THAT(first.end(), HasSubstr("all_reduce #1 of group tp differs between ranks"));
}

/// A backend whose operations lie in a queue that the test moves on.
class FakeGpuBackend final : public Backend {
 public:
  explicit FakeGpuBackend(std::shared_ptr<Backend> inner) : inner_(std::move(inner)) {}
  int rank() const override { return inner_->rank(); }
  const std::string& name() const override { return inner_->name(); }
  const std::vector<int>& ranks() const override { return inner_->ranks(); }
  std::shared_ptr<Backend> split(int, int, const std::string&, GroupUse) override {
    return nullptr;
  }
  Work all_reduce(const at::Tensor&, const at::Tensor&, ReduceOp) override { return queued(); }
  Work all_gather(const std::vector<at::Tensor>&, const at::Tensor&) override { return queued(); }
  Work reduce_scatter(const at::Tensor&, const std::vector<at::Tensor>&, ReduceOp) override {
    return queued();
  }
  Work broadcast(const at::Tensor&, int) override { return queued(); }
  Work all_to_all(const std::vector<at::Tensor>&, const std::vector<at::Tensor>&) override {
    return queued();
  }
  Work send_recv(const std::vector<Transfer>&) override { return queued(); }
  Work barrier() override { return inner_->barrier(); }

  std::shared_ptr<FakeOperation> last;

 private:
  class Queued final : public Work::Pending {
   public:
    explicit Queued(std::shared_ptr<FakeOperation> operation) : operation_(std::move(operation)) {}
    void wait() override {} // a stream waits
    bool done() const override { return operation_->progress() == Progress::kDone; }
    std::shared_ptr<DeviceOperation> on_device() const override { return operation_; }

   private:
    std::shared_ptr<FakeOperation> operation_;
  };
  Work queued() {
    last = std::make_shared<FakeOperation>(Progress::kQueued);
    return Work(std::make_shared<Queued>(last));
  }
  std::shared_ptr<Backend> inner_;
};

TEST(DeviceBackend, IsFollowedByTheLogAndNotByTheHost) {
  comm::run_ranks(2, {.threads_per_rank = 1}, [](const Group& world) {
    const auto gpu = std::make_shared<FakeGpuBackend>(world.shared_backend());
    const auto log = std::make_shared<OperationLog>();
    const Group group(monitored(gpu, log));
    const at::Tensor x = at::ones({3});
    Work work = all_reduce_start_(x, ReduceOp::kSum, group);
    work.wait(); // returns: the host goes on
    EXPECT_EQ(log->status().groups[0].operations[0].state, State::kQueued);
    gpu->last->reach(Progress::kRunning);
    EXPECT_EQ(log->status().groups[0].operations[0].state, State::kWaiting);
    EXPECT_FALSE(work.done());
    gpu->last->reach(Progress::kDone);
    EXPECT_TRUE(work.done());
    EXPECT_EQ(log->status().last_finished, "all_reduce(sum) #1 of group world of float32 [3]");
    TransferBatch batch(group);
    static_cast<void>(batch.send(x, 1 - group.rank()).recv(x, 1 - group.rank()).start());
    gpu->last->reach(Progress::kRunning);
    EXPECT_EQ(log->status().groups[0].operations[1].state, State::kWaiting);
    EXPECT_EQ(log->status().groups[0].operations[2].state, State::kWaiting);
  });
}

TEST(MonitoredCalls, AreWaitedForUntilTheyReturn) {
  OperationLog log;
  {
    const MonitoredCall call(log, "world", {0, 1}, "connect_gpus");
    const GroupStatus group = log.status().groups.at(0);
    EXPECT_EQ(group.name, "world");
    EXPECT_EQ(group.operations.at(0).state, State::kWaiting);
    EXPECT_EQ(group.operations.at(0).describe(group.name), "connect_gpus #1 of group world");
  }
  EXPECT_EQ(log.status().groups.at(0).operations.at(0).state, State::kDone);
  EXPECT_EQ(log.status().last_finished, "connect_gpus #1 of group world");
  try {
    const MonitoredCall call(log, "world", {0, 1}, "connect_gpus");
    throw std::runtime_error("no GPU");
  } catch (const std::runtime_error&) {
    EXPECT_EQ(log.status().groups.at(1).operations.at(0).state, State::kOpen);
  }
}

TEST(GpuStreams, GoInTheOrderOfWhatWaitsForThem) {
  for (const auto use : {GroupUse::kCollectives, GroupUse::kTransfers})
    EXPECT_EQ(stream_priority(use, 0, -5), -5);
  const int beside = stream_priority(GroupUse::kBackground, 0, -5);
  EXPECT_LT(beside, 0) << "no new block of a kernel that computes goes before it";
  EXPECT_GT(beside, -5);
  EXPECT_EQ(stream_priority(GroupUse::kBackground, 0, -1), -1) << "there are but two";
}

TEST(GpuQueues, AreEnoughOrRefused) {
  const char* const variable = "CUDA_DEVICE_MAX_CONNECTIONS";
  ::unsetenv(variable);
  EXPECT_NO_THROW(check_connections());
  ::setenv(variable, "1", 1);
  use_all_connections(); // the user's choice stays
  EXPECT_STREQ(std::getenv(variable), "1");
  EXPECT_THAT(test::error_of(check_connections),
              HasSubstr("CUDA_DEVICE_MAX_CONNECTIONS=1 makes streams of a GPU wait"));
  ::unsetenv(variable);
  use_all_connections();
  EXPECT_STREQ(std::getenv(variable), "32");
  EXPECT_NO_THROW(check_connections());
  ::unsetenv(variable);
}

} // namespace
} // namespace pentatron::comm::control
