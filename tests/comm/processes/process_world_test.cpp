#include "pentatron/comm/process_world.h"

#include "pentatron/base/error.h"
#include "pentatron/comm/collectives.h"
#include "pentatron/comm/differentiable.h"
#include "pentatron/comm/rank_threads.h"
#include "tests/comm/processes/processes.h"
#include "tests/support/ranks.h"
#include "tests/support/tensors.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <thread>
#include <unistd.h>

namespace pentatron::comm {
namespace {

using test::error_of;
using test::expect_close;
using test::processes;
using test::randn;
using testing::AllOf;
using testing::HasSubstr;

int size() {
  return processes().size();
}

at::Tensor one() {
  return at::ones({3}, at::kFloat);
}

/// Results of this rank under thread ranks and as processes.
class ProcessesAndThreads : public testing::TestWithParam<at::ScalarType> {
 protected:
  /// Values over several orders of magnitude, so that another order of summation gives other bits.
  static at::Tensor of_rank(int r, at::IntArrayRef shape) {
    constexpr int64_t kPeriod = 997; // divides no part and no step
    const auto seed = static_cast<uint64_t>(10 + r);
    at::Tensor x = randn({kPeriod}, seed) * at::exp(2 * randn({kPeriod}, seed + 50));
    if (at::isIntegralType(GetParam(), true)) x = x.clamp(-100, 100).round();
    const int64_t numel = c10::multiply_integers(shape);
    return x.to(GetParam()).repeat({numel / kPeriod + 1}).narrow(0, 0, numel).reshape(shape);
  }
  /// Of several steps for one dtype, of one for the others.
  static int64_t large() { return GetParam() == at::kFloat ? 700001 : 30001; }
  static void
  expect_equal(const std::function<std::vector<at::Tensor>(const Group& group)>& compute) {
    std::vector<std::vector<at::Tensor>> expected(static_cast<size_t>(size()));
    comm::run_ranks(size(), {.threads_per_rank = 1}, [&](const Group& group) {
      expected[static_cast<size_t>(group.rank())] = compute(group);
    });
    processes().run([&](const Group& group) {
      const std::vector<at::Tensor> actual = compute(group);
      const auto& of_threads = expected[static_cast<size_t>(group.rank())];
      for (size_t i = 0; i < actual.size(); ++i) expect_close(actual[i], of_threads[i]);
    });
  }
};

INSTANTIATE_TEST_SUITE_P(Dtypes, ProcessesAndThreads,
                         testing::Values(at::kDouble, at::kFloat, at::kBFloat16, at::kHalf,
                                         at::kLong, at::kInt, at::kByte, at::kBool),
                         [](const auto& info) { return c10::toString(info.param); });

TEST_P(ProcessesAndThreads, ReduceToTheSameBits) {
  for (const int64_t numel : {int64_t{0}, int64_t{1}, int64_t{3}, int64_t{2049}, large()})
    expect_equal([&](const Group& group) {
      const at::Tensor x = of_rank(group.rank(), {numel});
      std::vector<at::Tensor> results = {all_reduce(x, ReduceOp::kSum, group),
                                         all_reduce(x, ReduceOp::kMax, group)};
      all_reduce_(x, ReduceOp::kSum, group);
      results.push_back(x);
      return results;
    });
}

TEST_P(ProcessesAndThreads, ReduceScatterToTheSameBits) {
  for (const int64_t rows : {int64_t{0}, int64_t{1}, int64_t{3}, int64_t{2049}, large() / 2})
    expect_equal([&](const Group& group) -> std::vector<at::Tensor> {
      const at::Tensor x = of_rank(group.rank(), {rows * group.size(), 2});
      return {reduce_scatter(x, 0, group), reduce_scatter(x.t(), 1, group)};
    });
}

TEST_P(ProcessesAndThreads, MoveTheSameData) {
  for (const int64_t rows : {0, 1, 300, 9001})
    expect_equal([&](const Group& group) -> std::vector<at::Tensor> {
      const int n = group.size(), me = group.rank();
      const at::Tensor x = of_rank(me, {rows, 2 * n});
      const at::Tensor from_last = x.clone();
      broadcast_(from_last, n - 1, group);
      std::vector<int64_t> send_rows, receive_rows;
      const auto rows_of = [&](int from, int to) { return rows * ((from + 2 * to) % 3); };
      for (int r = 0; r < n; ++r) {
        send_rows.push_back(rows_of(me, r));
        receive_rows.push_back(rows_of(r, me));
      }
      int64_t sum = 0;
      for (const int64_t count : send_rows) sum += count;
      std::vector<at::Tensor> results = {from_last, all_gather(x, 0, group),
                                         all_gather(x, 1, group), all_to_all(x, 1, 0, group)};
      if (n > 1) // one rank sends itself what it expects
        results.push_back(all_to_all_rows(of_rank(me, {sum, 3}), send_rows, receive_rows, group));
      return results;
    });
}

TEST(ProcessWorld, NamesItsRanks) {
  processes().run([](const Group& world) {
    EXPECT_EQ(world.name(), "world");
    EXPECT_EQ(world.size(), size());
    EXPECT_EQ(world.rank(), processes().rank());
    EXPECT_EQ(world.ranks()[static_cast<size_t>(world.rank())], world.rank());
  });
}

TEST(ProcessWorld, GroupsEndWithTheirRun) {
  Group kept;
  processes().run([&](const Group& world) { kept = world; });
  if (size() == 1) return;
  EXPECT_THAT(error_of([&] { barrier(kept); }), HasSubstr("has ended"));
}

TEST(ProcessSplit, OrdersByKeyAndSeparatesColors) {
  processes().run([](const Group& world) {
    const Group halves = world.split(world.rank() % 2, -world.rank(), "halves");
    std::vector<int> expected;
    for (int r = world.size() - 1; r >= 0; --r)
      if (r % 2 == world.rank() % 2) expected.push_back(r);
    EXPECT_EQ(halves.ranks(), expected);
    EXPECT_EQ(halves.ranks()[static_cast<size_t>(halves.rank())], world.rank());
    const at::Tensor ranks = all_gather(at::full({1}, world.rank(), at::kLong), 0, halves);
    for (size_t r = 0; r < expected.size(); ++r)
      EXPECT_EQ(ranks[static_cast<int64_t>(r)].item<int64_t>(), expected[r]);
    EXPECT_EQ(halves.split(world.rank(), 0, "alone").size(), 1);
  });
}

TEST(ProcessSplit, UnderDifferentNamesIsAMismatch) {
  if (size() < 2) GTEST_SKIP() << "needs two ranks";
  processes().run([](const Group& world) {
    EXPECT_THAT(
        error_of([&] { world.split(0, 0, world.rank() == 0 ? "tp" : "dp"); }),
        AllOf(HasSubstr("rank 0 calls split into tp"), HasSubstr("rank 1 calls split into dp")));
  });
}

TEST(ProcessWorks, HundredsAtATimeOverGroupsThatCross) {
  // A grid of tp rows and dp columns. Ranks start the collectives of their two groups in different
  // orders, and wait in another.
  processes().run([](const Group& world) {
    const int me = world.rank();
    const Group tp = world.split(me / 2, me, "tp"), dp = world.split(me % 2, me, "dp");
    std::vector<at::Tensor> rows, columns;
    std::vector<Work> works;
    const auto sum_over = [&](const Group& group, std::vector<at::Tensor>& into, int i) {
      const int64_t numel = i % 10 == 0 ? 30000 : 5;
      into.push_back(at::full({numel}, me + i, at::kFloat));
      works.push_back(all_reduce_start_(into.back(), ReduceOp::kSum, group));
    };
    constexpr int kCount = 100;
    for (int i = 0; i < kCount; ++i)
      if (me % 2 == 0) {
        sum_over(tp, rows, i);
        sum_over(dp, columns, i);
      } else {
        sum_over(dp, columns, i);
        sum_over(tp, rows, i);
      }
    for (size_t i = works.size(); i-- > 0;) works[i].wait();
    const auto expect_sums = [&](const Group& group, const std::vector<at::Tensor>& sums) {
      int ranks = 0;
      for (const int r : group.ranks()) ranks += r;
      for (int i = 0; i < kCount; ++i) {
        const at::Tensor& x = sums[static_cast<size_t>(i)];
        expect_close(x, at::full_like(x, ranks + group.size() * i));
      }
    };
    expect_sums(tp, rows);
    expect_sums(dp, columns);
  });
}

TEST(ProcessWorks, TransfersPassCollectivesThatWait) {
  if (size() < 2) GTEST_SKIP() << "needs two ranks";
  processes().run([](const Group& world) {
    if (world.rank() > 1) return;
    const Group& pair = world;
    std::vector<at::Tensor> received;
    TransferBatch batch(pair);
    const int peer = 1 - world.rank();
    for (int i = 0; i < 50; ++i) {
      const int64_t numel = i % 7 == 0 ? 20000 : 3;
      received.push_back(at::empty({numel}, at::kFloat));
      batch.send(at::full({numel}, 100 * world.rank() + i, at::kFloat), peer);
      batch.recv(received.back(), peer);
    }
    batch.start().wait();
    for (int i = 0; i < 50; ++i) {
      const at::Tensor& x = received[static_cast<size_t>(i)];
      expect_close(x, at::full_like(x, 100 * peer + i));
    }
  });
}

TEST(ProcessWorks, TakePlaceWhenDropped) {
  processes().run([](const Group& world) {
    const at::Tensor x = at::full({50000}, world.rank(), at::kFloat);
    { const Work dropped = all_reduce_start_(x, ReduceOp::kSum, world); }
    barrier(world); // comes after it in the group
    expect_close(x, at::full({50000}, world.size() * (world.size() - 1) / 2, at::kFloat));
  });
}

TEST(ProcessWorks, FinishWhileARankOnlyComputes) {
  // Rank 0 does not look at its Work before the others have finished theirs, which they tell by a
  // file.
  const std::filesystem::path marker =
      std::filesystem::temp_directory_path() /
      fmt::format("pentatron_processes_{}_{}", getppid(), processes().size());
  processes().run([&](const Group& world) {
    const at::Tensor x = at::full({500000}, world.rank(), at::kFloat);
    if (world.rank() == 0) std::filesystem::remove(marker);
    barrier(world);
    Work work = all_reduce_start_(x, ReduceOp::kSum, world);
    if (world.rank() == world.size() - 1) {
      if (world.size() > 1) work.wait();
      std::ofstream(marker) << "done";
    }
    while (world.rank() == 0 && !std::filesystem::exists(marker))
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    work.wait();
    expect_close(x, at::full({500000}, world.size() * (world.size() - 1) / 2, at::kFloat));
    barrier(world);
    if (world.rank() == 0) std::filesystem::remove(marker);
  });
}

TEST(ProcessWorks, AreStartedInBackwardFromAnyThread) {
  processes().run([](const Group& world) {
    const at::Tensor x = at::ones({257}, at::kDouble).requires_grad_();
    std::thread([&] {
      at::Tensor y = x;
      for (int i = 0; i < 50; ++i) y = copy_to(y, world) / world.size();
      y.sum().backward();
    }).join();
    expect_close(x.grad(), at::ones({257}, at::kDouble), {.rtol = 1e-12});
  });
}

TEST(ProcessAbort, EndsTheRanksThatWaitAndReportsTheFirstReason) {
  if (size() < 2) GTEST_SKIP() << "needs two ranks";
  for (int round = 0; round < 3; ++round) { // a run after a failure works
    const std::string error = error_of([&] {
      processes().run([&](const Group& world) {
        if (world.rank() == 1) raise<DataError>("file x.bin is damaged");
        const std::string left =
            error_of([&] { all_reduce(at::ones({50000}), ReduceOp::kSum, world); });
        EXPECT_EQ(left, fmt::format("rank {} left all_reduce #1 of group world because rank 1 of "
                                    "{} failed: file x.bin is damaged",
                                    world.rank(), size()));
        barrier(world); // and the next one
      });
    });
    EXPECT_EQ(error, fmt::format("rank 1 of {}: file x.bin is damaged", size()));
  }
  processes().run([](const Group& world) {
    expect_close(all_reduce(one(), ReduceOp::kSum, world), size() * one());
  });
}

TEST(ProcessAbort, KeepsTheTypeOfTheReasonOnEveryRank) {
  EXPECT_THROW(processes().run([](const Group& world) {
    if (world.rank() == size() - 1) raise<ShapeError>("no");
    barrier(world);
  }),
               ShapeError);
}

TEST(ProcessAbort, ReachesRanksInAnyCommunication) {
  if (size() < 2) GTEST_SKIP() << "needs two ranks";
  const std::string error = error_of([] {
    processes().run([](const Group& world) {
      std::vector<Group> pairs;
      for (int other = 1; other < world.size(); ++other)
        pairs.push_back(world.split(world.rank() == 0 || world.rank() == other ? 0 : 1, 0,
                                    fmt::format("pair{}", other)));
      barrier(world);
      switch (world.rank()) {
      case 0:
        raise<Error>("enough");
      case 1:
        recv(one(), 0, pairs[0]);
        break;
      case 2:
        all_gather(one(), 0, pairs[1]);
        break;
      default:
        pairs[2].split(0, 0, "again");
      }
    });
  });
  EXPECT_EQ(error, fmt::format("rank 0 of {}: enough", size()));
}

TEST(ProcessAbort, DoesNotPullTensorsFromUnderTheOthers) {
  if (size() < 2) GTEST_SKIP() << "needs two ranks";
  for (int round = 0; round < 10; ++round)
    EXPECT_THROW(processes().run([&](const Group& world) {
      at::Tensor x = at::ones({400000}, at::kFloat);
      Work work = all_reduce_start_(x, ReduceOp::kSum, world);
      if (world.rank() == round % size()) raise<Error>("leaving");
      work.wait();
      barrier(world);
    }),
                 Error);
}

TEST(ProcessFinish, WhileOthersWaitIsNamed) {
  if (size() < 2) GTEST_SKIP() << "needs two ranks";
  const std::string error = error_of([] {
    processes().run([](const Group& world) {
      const Group tp = world.split(0, world.rank(), "tp");
      all_reduce(one(), ReduceOp::kSum, tp);
      if (world.rank() == 0) all_reduce(one(), ReduceOp::kSum, tp);
    });
  });
  EXPECT_THAT(error, AllOf(HasSubstr(fmt::format("rank 0 of {}: rank ", size())),
                           HasSubstr("finished while ranks 0 wait in all_reduce #2 of group tp")));
}

TEST(ProcessFinish, WhileAReceiverWaitsIsNamed) {
  if (size() < 2) GTEST_SKIP() << "needs two ranks";
  const std::string error = error_of([] {
    processes().run([](const Group& world) {
      if (world.rank() == 1) recv(one(), 0, world);
    });
  });
  EXPECT_EQ(error, fmt::format("rank 1 of {}: rank 0 finished while ranks 1 wait in send #1 from "
                               "rank 0 to rank 1 of group world",
                               size()));
}

TEST(ProcessFinish, WithWorkUnderWayIsFine) {
  processes().run([](const Group& world) {
    const at::Tensor x = at::full({100000}, 1, at::kFloat);
    Work work = all_reduce_start_(x, ReduceOp::kSum, world);
    if (world.rank() == 0) return; // started, so the others can finish
    work.wait();
    expect_close(x, at::full({100000}, size(), at::kFloat));
  });
}

} // namespace
} // namespace pentatron::comm
