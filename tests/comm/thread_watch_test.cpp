// Thread ranks that stay away, and the cost and fidelity of monitoring.
#include "pentatron/base/error.h"
#include "pentatron/comm/collectives.h"
#include "pentatron/comm/control/monitored_backend.h"
#include "pentatron/comm/long_work.h"
#include "pentatron/comm/rank_threads.h"
#include "tests/support/ranks.h"
#include "tests/support/tensors.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <unistd.h>

namespace pentatron::comm {
namespace {

using namespace std::chrono_literals;
using test::error_of;
using testing::AllOf;
using testing::HasSubstr;

RankThreadsOptions watched(double timeout_s = 0.5) {
  return {.threads_per_rank = 1, .timeout_s = timeout_s, .heartbeat_s = 0.05, .grace_s = 20};
}

TEST(ThreadWatch, NamesARankThatSleeps) {
  std::atomic<bool> over = false;
  std::atomic<int> left = 0;
  const std::string error = error_of([&] {
    run_ranks(4, watched(), [&](const Group& world) {
      barrier(world);
      if (world.rank() == 2) {
        while (!over) std::this_thread::sleep_for(5ms);
        return;
      }
      try {
        all_reduce(at::ones({3, 4}), ReduceOp::kSum, world);
      } catch (const CommError&) {
        if (++left == 3) over = true;
        throw;
      }
    });
  });
  EXPECT_THAT(error, AllOf(testing::StartsWith("rank 2 has not arrived at all_reduce(sum) #2 of "
                                               "group world of float32 [3, 4] for 0."),
                           HasSubstr("ranks 0, 1, 3 wait"),
                           HasSubstr("rank 2 last finished barrier #1 of group world")));
  EXPECT_EQ(left, 3);
}

TEST(ThreadWatch, WaitsForLongWorkAsLongAsItMakesProgress) {
  std::atomic<int> passed = 0;
  run_ranks(3, watched(0.3), [&](const Group& world) {
    if (world.rank() == 1) { // another thread does it, as when a checkpoint is written
      const LongWork work(world, "a test");
      const ProgressTeller tell(world);
      std::thread helper([&] {
        for (int i = 0; i < 60; ++i) {
          std::this_thread::sleep_for(20ms);
          tell();
        }
      });
      helper.join();
    }
    barrier(world);
    ++passed;
  });
  EXPECT_EQ(passed, 3);
}

TEST(ThreadWatch, TellsLongWorkThatStandsStill) {
  std::atomic<bool> over = false;
  const auto stuck = [&](bool tells) {
    over = false;
    return error_of([&] {
      run_ranks(2, watched(0.3), [&](const Group& world) {
        if (world.rank() == 1) {
          const ProgressTeller tell(world);
          if (tells) { // of no work: that is no progress
            while (!over) {
              std::this_thread::sleep_for(20ms);
              tell();
            }
            return;
          }
          const LongWork work(world, "a test");
          while (!over) std::this_thread::sleep_for(5ms);
          return;
        }
        try {
          barrier(world);
        } catch (const CommError&) {
          over = true;
          throw;
        }
      });
    });
  };
  EXPECT_THAT(stuck(false), HasSubstr("rank 1 works on a test and has made no progress for 0."));
  EXPECT_THAT(stuck(true), HasSubstr("rank 1 has finished no operation yet"));
}

TEST(ThreadWatch, LetsSlowRanksThatWaitForNothingBe) {
  std::atomic<int> finished = 0;
  run_ranks(2, watched(0.3), [&](const Group& world) {
    const at::Tensor x = at::ones({2});
    Work work = all_reduce_start_(x, ReduceOp::kSum, world);
    std::this_thread::sleep_for(1s); // longer than the timeout, waiting for nothing
    work.wait();
    if (at::equal(x, at::full({2}, 2.0))) ++finished;
  });
  EXPECT_EQ(finished, 2);
}

TEST(ThreadWatch, KeepsTheErrorsOfARunThatFailsByItself) {
  EXPECT_EQ(error_of([] {
              run_ranks(2, watched(), [](const Group& world) {
                if (world.rank() == 1) raise<DataError>("file x.bin is damaged");
                barrier(world);
              });
            }),
            "rank 1 of 2: file x.bin is damaged");
}

TEST(ThreadWatch, NamesTheGroupOfTransfers) {
  EXPECT_THAT(error_of([] {
                run_ranks(3, watched(0.3), [](const Group& world) {
                  const Group pair = world.split(world.rank() < 2 ? 0 : 1, 0, "pp");
                  const at::Tensor x = at::ones({2}, at::kBFloat16);
                  if (world.rank() == 0) recv(x, 1, pair);
                  if (world.rank() > 0) std::this_thread::sleep_for(1500ms);
                });
              }),
              HasSubstr("rank 1 has not arrived at send #1 from rank 1 to rank 0 in group pp of "
                        "bfloat16 [2] for"));
}

TEST(ThreadWatchDeathTest, EndsTheProcessIfARankNeverReturns) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  const auto hang = [] {
    RankThreadsOptions options = watched(0.3);
    options.grace_s = 0.3;
    run_ranks(2, options, [](const Group& world) {
      if (world.rank() == 1)
        while (true) std::this_thread::sleep_for(1s);
      barrier(world);
    });
  };
  EXPECT_EXIT(hang(), testing::ExitedWithCode(1),
              "error: rank 1 has not arrived at barrier #1 of group world");
}

TEST(MonitoredBackend, CarriesEveryCollectiveUnchanged) {
  run_ranks(3, watched(60), [](const Group& world) {
    const double rank = world.rank();
    const at::Tensor x = at::full({3, 2}, rank, at::kDouble);
    test::expect_close(all_reduce(x, ReduceOp::kSum, world), at::full({3, 2}, 3.0, at::kDouble));
    test::expect_close(all_reduce(x, ReduceOp::kMax, world), at::full({3, 2}, 2.0, at::kDouble));
    EXPECT_EQ(all_gather(x, 0, world).sizes(), (std::vector<int64_t>{9, 2}));
    test::expect_close(reduce_scatter(x, 0, world), at::full({1, 2}, 3.0, at::kDouble));
    at::Tensor y = x.clone();
    broadcast_(y, 2, world);
    test::expect_close(y, at::full({3, 2}, 2.0, at::kDouble));
    EXPECT_EQ(all_to_all(x, 0, 1, world).sizes(), (std::vector<int64_t>{1, 6}));
    const Group pair = world.split(world.rank() == 1 ? 1 : 0, -world.rank(), "pair");
    if (pair.size() == 2) {
      EXPECT_EQ(pair.ranks(), (std::vector<int>{2, 0}));
      at::Tensor received = at::empty({3, 2}, at::kDouble);
      TransferBatch batch(pair);
      batch.send(x, 1 - pair.rank()).recv(received, 1 - pair.rank());
      Work work = batch.start();
      work.wait();
      EXPECT_TRUE(work.done());
      test::expect_close(received, at::full({3, 2}, 2.0 - rank, at::kDouble));
    }
    barrier(world);
  });
}

TEST(MonitoredBackend, LogsWhatItsCallersDo) {
  run_ranks(2, {.threads_per_rank = 1}, [](const Group& world) {
    const auto log = std::make_shared<control::OperationLog>();
    const Group group(control::monitored(world.shared_backend(), log));
    EXPECT_EQ(group.name(), "world");
    all_reduce(at::ones({3, 4}), ReduceOp::kMax, group);
    EXPECT_EQ(log->status().last_finished, "all_reduce(max) #1 of group world of float32 [3, 4]");
    Work work = all_reduce_start_(at::ones({2}, at::kLong), ReduceOp::kSum, group);
    EXPECT_EQ(log->status().groups[0].operations[1].state, control::OperationStatus::State::kOpen);
    work.wait();
    EXPECT_EQ(log->status().last_finished, "all_reduce(sum) #2 of group world of int64 [2]");
    broadcast_(at::ones({1}), 1, group);
    EXPECT_EQ(log->status().last_finished, "broadcast(root 1) #3 of group world of float32 [1]");
    const Group part = group.split(0, 0, "tp");
    EXPECT_EQ(log->status().last_finished, "split into tp #4 of group world");
    all_gather(at::ones({1, 1, 1, 1, 1, 1, 1, 2}), 0, part);
    EXPECT_EQ(log->status().last_finished,
              "all_gather #1 of group tp of float32 [1, 1, 1, 1, 1, 1, ...]");
  });
}

} // namespace
} // namespace pentatron::comm
