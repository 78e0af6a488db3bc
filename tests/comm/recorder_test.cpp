// What a Recorder sees of a rank's communication.
#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include <fmt/format.h>

#include "pentatron/base/format.h"
#include "pentatron/comm/collectives.h"
#include "pentatron/comm/recorder.h"
#include "tests/support/ranks.h"

namespace pentatron::comm {
namespace {

using testing::ElementsAre;

std::vector<std::string> calls_of(const std::vector<RecordedOperation>& operations) {
  std::vector<std::string> calls;
  for (const RecordedOperation& operation : operations)
    calls.push_back(fmt::format("{} {} {} {}", operation.group, operation.call, operation.bytes,
                                operation.sent_bytes));
  return calls;
}

TEST(Recorder, SeesEveryOperationOfAGroupAndOfItsParts) {
  test::run_ranks(4, [](const Group& plain) {
    const auto recorder = std::make_shared<Recorder>();
    const Group world = recorded(plain, recorder);
    const Group pair = world.split(world.rank() / 2, 0, "pair");
    recorder->enable(true);
    const at::Tensor x = at::ones({8}, at::kFloat);
    all_reduce_(x, ReduceOp::kSum, world);
    all_gather(x, 0, pair);
    reduce_scatter(x, 0, pair);
    broadcast_(x, 1, pair);
    if (pair.rank() == 0) {
      all_to_all_rows(x, {2, 6}, {2, 2}, pair);
    } else {
      all_to_all_rows(x, {2, 6}, {6, 6}, pair);
    }
    if (pair.rank() == 0) {
      send(x, 1, pair);
    } else {
      recv(x, 0, pair);
    }
    barrier(world);
    const bool first = pair.rank() == 0;
    EXPECT_THAT(
        calls_of(recorder->take()),
        ElementsAre("world all_reduce 32 48", "pair all_gather 32 32", "pair reduce_scatter 32 16",
                    first ? "pair broadcast 32 0" : "pair broadcast 32 32",
                    first ? "pair all_to_all 32 24" : "pair all_to_all 32 8",
                    first ? "pair send to 1 32 32" : "pair recv from 0 32 0", "world barrier 0 0"));
    EXPECT_TRUE(recorder->take().empty());
    EXPECT_FLOAT_EQ(x[0].item<float>(), 4) << "and changes nothing";
  });
}

TEST(Recorder, TellsStartWaitAndEndApart) {
  test::run_ranks(2, [](const Group& plain) {
    const auto recorder = std::make_shared<Recorder>();
    const Group world = recorded(plain, recorder);
    recorder->enable(true);
    const double begin = monotonic_s();
    const at::Tensor x = at::ones({8}, at::kFloat);
    Work work = all_reduce_start_(x, ReduceOp::kSum, world);
    const double started = monotonic_s();
    EXPECT_TRUE(recorder->take().empty()) << "it is under way";
    const double waits = monotonic_s();
    work.wait();
    work.wait();
    const double end = monotonic_s();
    const std::vector<RecordedOperation> seen = recorder->take();
    ASSERT_EQ(seen.size(), 1u) << "once, however often it is waited for";
    EXPECT_LE(begin, seen[0].start_s);
    EXPECT_LE(seen[0].start_s, started);
    EXPECT_LE(waits, seen[0].wait_s);
    EXPECT_LE(seen[0].wait_s, seen[0].end_s);
    EXPECT_LE(seen[0].end_s, end);
  });
}

TEST(Recorder, CountsADroppedOperationToo) {
  test::run_ranks(2, [](const Group& plain) {
    const auto recorder = std::make_shared<Recorder>();
    const Group world = recorded(plain, recorder);
    recorder->enable(true);
    { const Work dropped = all_reduce_start_(at::ones({8}), ReduceOp::kSum, world); }
    const std::vector<RecordedOperation> seen = recorder->take();
    ASSERT_EQ(seen.size(), 1u);
    EXPECT_EQ(seen[0].wait_s, seen[0].end_s) << "nobody waited";
    barrier(world);
  });
}

TEST(Recorder, SeesNothingWhenItIsOff) {
  test::run_ranks(2, [](const Group& plain) {
    const auto recorder = std::make_shared<Recorder>();
    barrier(recorded(plain, recorder));
    EXPECT_TRUE(recorder->take().empty());
  });
}

TEST(Recorder, LeavesAGroupOfOneAlone) {
  const Group alone = recorded(Group(), std::make_shared<Recorder>());
  EXPECT_EQ(alone.size(), 1);
  EXPECT_EQ(alone.shared_backend(), nullptr);
}

} // namespace
} // namespace pentatron::comm
