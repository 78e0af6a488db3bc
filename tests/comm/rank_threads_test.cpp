#include "pentatron/comm/rank_threads.h"

#include "pentatron/base/error.h"
#include "pentatron/comm/collectives.h"
#include "pentatron/comm/differentiable.h"
#include "tests/support/ranks.h"
#include "tests/support/tensors.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <mutex>

namespace pentatron::comm {
namespace {

using test::error_of;
using testing::AllOf;
using testing::HasSubstr;

at::Tensor one() {
  return at::ones({3}, at::kFloat);
}

TEST(RunRanks, GivesEachThreadItsRankOnce) {
  std::mutex mutex;
  std::vector<int> seen;
  run_ranks(5, [&](const Group& world) {
    EXPECT_EQ(world.size(), 5);
    EXPECT_EQ(world.name(), "world");
    EXPECT_EQ(current_rank(), world.rank());
    const std::lock_guard lock(mutex);
    seen.push_back(world.rank());
  });
  EXPECT_THAT(seen, testing::UnorderedElementsAre(0, 1, 2, 3, 4));
  EXPECT_EQ(current_rank(), 0);
}

TEST(RunRanks, SetsComputeThreadsOfTheRanksAndKeepsTheCallers) {
  const int before = at::get_num_threads();
  run_ranks(2, {.threads_per_rank = 3}, [](const Group&) { EXPECT_EQ(at::get_num_threads(), 3); });
  EXPECT_EQ(at::get_num_threads(), before);
  run_ranks(2, [&](const Group&) { EXPECT_EQ(at::get_num_threads(), std::max(1, before / 2)); });
  EXPECT_EQ(at::get_num_threads(), before);
}

TEST(RunRanks, KeepsTheCallersGradMode) {
  run_ranks(2, [](const Group&) { EXPECT_TRUE(at::GradMode::is_enabled()); });
  const at::NoGradGuard no_grad;
  run_ranks(2, [](const Group&) { EXPECT_FALSE(at::GradMode::is_enabled()); });
}

TEST(RunRanks, RefusesAWorldOfNone) {
  EXPECT_THROW(run_ranks(0, [](const Group&) {}), ConfigError);
  EXPECT_THROW(run_ranks(1, {.threads_per_rank = -1}, [](const Group&) {}), ConfigError);
}

TEST(Abort, EndsTheRanksThatWaitAndReportsTheFirstReason) {
  for (const int world_size : {2, 16}) {
    std::atomic<int> left = 0;
    const std::string error = error_of([&] {
      run_ranks(world_size, [&](const Group& world) {
        if (world.rank() == 1) raise<DataError>("file x.bin is damaged");
        try {
          all_reduce(one(), ReduceOp::kSum, world);
        } catch (const CommError& comm_error) {
          EXPECT_THAT(comm_error.what(),
                      AllOf(HasSubstr("all_reduce #1 of group world"), HasSubstr("rank 1"),
                            HasSubstr("file x.bin is damaged")));
          ++left;
          throw;
        }
      });
    });
    EXPECT_EQ(error, fmt::format("rank 1 of {}: file x.bin is damaged", world_size));
    EXPECT_EQ(left, world_size - 1);
  }
}

TEST(Abort, KeepsTheTypeOfTheReason) {
  EXPECT_THROW(run_ranks(2,
                         [](const Group& world) {
                           if (world.rank() == 0) raise<ShapeError>("no");
                           barrier(world);
                         }),
               ShapeError);
  EXPECT_THAT(
      error_of([] { run_ranks(2, [](const Group&) { throw std::out_of_range("index"); }); }),
      HasSubstr(" of 2: index"));
  EXPECT_THAT(error_of([] { run_ranks(1, [](const Group&) { throw 3; }); }),
              HasSubstr("unknown type"));
}

TEST(Abort, ReachesRanksInAnyCommunication) {
  // Each rank blocks in another kind of operation, in a group that rank 0 belongs to.
  const std::string error = error_of([] {
    run_ranks(5, [](const Group& world) {
      std::vector<Group> pairs;
      for (int other = 1; other < 5; ++other)
        pairs.push_back(world.split(world.rank() == 0 || world.rank() == other ? 0 : 1, 0,
                                    fmt::format("pair{}", other)));
      barrier(world);
      const at::Tensor x = one();
      switch (world.rank()) {
      case 0:
        raise<Error>("enough");
      case 1:
        all_gather(x, 0, pairs[0]);
        break;
      case 2:
        recv(x, 0, pairs[1]);
        break;
      case 3:
        barrier(pairs[2]);
        break;
      default:
        pairs[3].split(0, 0, "again");
      }
    });
  });
  EXPECT_EQ(error, "rank 0 of 5: enough");
}

TEST(Abort, ReachesRanksInsideBackward) {
  const std::string error = error_of([] {
    run_ranks(3, [](const Group& world) {
      const at::Tensor x = one().requires_grad_();
      const at::Tensor y = copy_to(x, world).sum();
      if (world.rank() == 2) raise<Error>("lost in backward");
      y.backward();
    });
  });
  EXPECT_EQ(error, "rank 2 of 3: lost in backward");
}

TEST(Abort, MeetsARankAtItsNextCommunication) {
  std::atomic<bool> failed = false;
  EXPECT_THROW(run_ranks(2,
                         [&](const Group& world) {
                           if (world.rank() == 0) {
                             failed = true;
                             raise<Error>("first");
                           }
                           while (!failed) std::this_thread::yield();
                           while (true) (void)all_reduce_start_(one(), ReduceOp::kSum, world);
                         }),
               Error);
}

TEST(Abort, DoesNotPullTensorsFromUnderTheOthers) {
  // Rank 0 leaves with its tensors while others may be reading them; many rounds, so that
  // sanitizers see the overlap.
  for (int round = 0; round < 20; ++round)
    EXPECT_THROW(run_ranks(4,
                           [&](const Group& world) {
                             at::Tensor x = at::ones({200000}, at::kFloat);
                             Work work = all_reduce_start_(x, ReduceOp::kSum, world);
                             if (world.rank() == round % 4) raise<Error>("leaving");
                             work.wait();
                             barrier(world);
                           }),
                 Error);
}

TEST(Finish, WhileOthersWaitIsNamed) {
  const std::string error = error_of([] {
    run_ranks(2, [](const Group& world) {
      const Group tp = world.split(0, world.rank(), "tp");
      all_reduce(one(), ReduceOp::kSum, tp);
      if (world.rank() == 0) all_reduce(one(), ReduceOp::kSum, tp);
    });
  });
  EXPECT_EQ(error, "rank 0 of 2: rank 1 finished while ranks 0 wait in all_reduce #2 of group tp");
}

TEST(Finish, WhileAReceiverWaitsIsNamed) {
  const std::string error = error_of([] {
    run_ranks(3, [](const Group& world) {
      if (world.rank() == 2) recv(one(), 0, world);
    });
  });
  EXPECT_EQ(error, "rank 2 of 3: rank 0 finished while ranks 2 wait in send #1 from rank 0 to rank "
                   "2 of group world");
}

TEST(Finish, WithWorkUnderWayIsFine) {
  run_ranks(3, [](const Group& world) {
    const at::Tensor x = at::full({100000}, world.rank(), at::kFloat);
    Work work = all_reduce_start_(x, ReduceOp::kSum, world);
    if (world.rank() == 0) return; // started, so the others can finish
    work.wait();
    test::expect_close(x, at::full({100000}, 3, at::kFloat));
  });
}

TEST(Deadlock, OfRanksInDifferentGroupsIsNamed) {
  const std::string error = error_of([] {
    run_ranks(2, [](const Group& world) {
      const Group tp = world.split(0, world.rank(), "tp"), dp = world.split(0, world.rank(), "dp");
      all_reduce(one(), ReduceOp::kSum, world.rank() == 0 ? tp : dp);
    });
  });
  EXPECT_THAT(error, AllOf(HasSubstr("wait for each other"),
                           HasSubstr("rank 0 in all_reduce #1 of group tp"),
                           HasSubstr("rank 1 in all_reduce #1 of group dp")));
}

TEST(Deadlock, OfNeighboursThatAllReceiveFirstIsNamed) {
  const std::string error = error_of([] {
    run_ranks(3, [](const Group& world) {
      recv(one(), (world.rank() + 1) % 3, world);
      send(one(), (world.rank() + 2) % 3, world);
    });
  });
  EXPECT_THAT(error, HasSubstr("wait for each other"));
}

TEST(Split, OrdersByKeyAndSeparatesColors) {
  test::run_ranks(6, [](const Group& world) {
    const Group group = world.split(world.rank() % 2, -world.rank(), "halves");
    EXPECT_EQ(group.size(), 3);
    const std::vector<int> expected =
        world.rank() % 2 == 0 ? std::vector<int>{4, 2, 0} : std::vector<int>{5, 3, 1};
    EXPECT_EQ(group.ranks(), expected);
    EXPECT_EQ(group.ranks()[group.rank()], world.rank());
    const at::Tensor ranks = all_gather(at::full({1}, world.rank(), at::kLong), 0, group);
    for (int r = 0; r < 3; ++r) EXPECT_EQ(ranks[r].item<int64_t>(), expected[r]);
  });
}

TEST(Split, GivesGroupsOfOneToSingleColors) {
  test::run_ranks(3, [](const Group& world) {
    const Group group = world.split(world.rank(), 0, "alone");
    EXPECT_EQ(group.size(), 1);
    EXPECT_EQ(group.ranks(), std::vector<int>{world.rank()});
    test::expect_close(all_reduce(one(), ReduceOp::kSum, group), one());
  });
  EXPECT_EQ(Group::self().split(3, 1, "x").name(), "x");
}

TEST(Split, UnderDifferentNamesIsAMismatch) {
  EXPECT_THAT(error_of([] {
                run_ranks(2, [](const Group& world) {
                  world.split(0, 0, world.rank() == 0 ? "tp" : "dp");
                });
              }),
              AllOf(HasSubstr("split into tp"), HasSubstr("split into dp")));
}

TEST(GroupValue, OutlivesItsRanksWithoutHanging) {
  Group kept;
  run_ranks(2, [&](const Group& world) {
    if (world.rank() == 0) kept = world;
  });
  EXPECT_EQ(kept.size(), 2);
  EXPECT_THROW(barrier(kept), CommError);
}

TEST(SixteenRanks, AllReduceInsideBackwardBlockingHundredsOfTimes) {
  test::run_ranks(16, [](const Group& world) {
    const at::Tensor x = at::ones({257}, at::kDouble).requires_grad_();
    at::Tensor y = x;
    for (int i = 0; i < 500; ++i) y = copy_to(y, world) / 16;
    y.sum().backward();
    test::expect_close(x.grad(), at::ones({257}, at::kDouble));
  });
}

} // namespace
} // namespace pentatron::comm
