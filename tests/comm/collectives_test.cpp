#include "pentatron/comm/collectives.h"

#include "pentatron/base/error.h"
#include "pentatron/comm/gather_text.h"
#include "tests/support/ranks.h"
#include "tests/support/tensors.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

namespace pentatron::comm {
namespace {

using test::expect_close;
using test::randn;
using test::run_ranks;
using testing::HasSubstr;

/// Over world sizes and dtypes; 16 thread ranks are more than the cores of the machine.
class Collectives : public testing::TestWithParam<std::tuple<int, at::ScalarType>> {
 protected:
  int world() const { return std::get<0>(GetParam()); }
  at::ScalarType dtype() const { return std::get<1>(GetParam()); }
  /// What rank r brings.
  at::Tensor of_rank(int r, at::IntArrayRef shape) const {
    return randn(shape, static_cast<uint64_t>(100 + r), dtype());
  }
  /// Sum in rank order in the accumulate type, rounded once.
  at::Tensor sum(at::IntArrayRef shape) const {
    const bool narrow = dtype() == at::kBFloat16 || dtype() == at::kHalf;
    at::Tensor acc = of_rank(0, shape).to(narrow ? at::kFloat : dtype());
    for (int r = 1; r < world(); ++r) acc = acc + of_rank(r, shape).to(acc.scalar_type());
    return acc.to(dtype());
  }
};

INSTANTIATE_TEST_SUITE_P(WorldsAndDtypes, Collectives,
                         testing::Combine(testing::Values(1, 2, 3, 4, 16),
                                          testing::Values(at::kDouble, at::kFloat, at::kBFloat16,
                                                          at::kHalf, at::kLong)),
                         [](const auto& info) {
                           return fmt::format("{}x{}", std::get<0>(info.param),
                                              c10::toString(std::get<1>(info.param)));
                         });

TEST_P(Collectives, AllReduceIsTheSumInRankOrderBitForBit) {
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{7, 5}, {1}, {0, 3}, {}, {40001}}) {
    const at::Tensor expected = sum(shape);
    run_ranks(world(), [&](const Group& group) {
      const at::Tensor x = of_rank(group.rank(), shape);
      expect_close(all_reduce(x, ReduceOp::kSum, group), expected);
      expect_close(x, of_rank(group.rank(), shape));
      all_reduce_(x, ReduceOp::kSum, group);
      expect_close(x, expected);
    });
  }
}

TEST_P(Collectives, AllReduceTakesTheMaximum) {
  at::Tensor expected = of_rank(0, {7, 5});
  for (int r = 1; r < world(); ++r) expected = at::maximum(expected, of_rank(r, {7, 5}));
  run_ranks(world(), [&](const Group& group) {
    expect_close(all_reduce(of_rank(group.rank(), {7, 5}), ReduceOp::kMax, group), expected);
  });
}

TEST_P(Collectives, AllReduceInPlaceKeepsStrides) {
  const at::Tensor expected = sum({7, 5}).t();
  run_ranks(world(), [&](const Group& group) {
    const at::Tensor x = of_rank(group.rank(), {7, 5}).t();
    all_reduce_(x, ReduceOp::kSum, group);
    expect_close(x, expected);
    EXPECT_EQ(x.stride(0), 1);
  });
}

TEST_P(Collectives, AllGatherConcatenatesInRankOrder) {
  for (const int64_t extent : {1, 3, 2001})
    for (const int64_t dim : {0, 1, -1}) {
      std::vector<int64_t> shape = {3, 2, 5};
      shape[dim < 0 ? dim + 3 : dim] = extent;
      std::vector<at::Tensor> all;
      for (int r = 0; r < world(); ++r) all.push_back(of_rank(r, shape));
      const at::Tensor expected = at::cat(all, dim);
      run_ranks(world(), [&](const Group& group) {
        expect_close(all_gather(of_rank(group.rank(), shape), dim, group), expected);
      });
    }
}

TEST_P(Collectives, AllGatherIntoTakesItsInputFromTheOutput) {
  std::vector<at::Tensor> all;
  for (int r = 0; r < world(); ++r) all.push_back(of_rank(r, {5}));
  const at::Tensor expected = at::cat(all);
  run_ranks(world(), [&](const Group& group) {
    const at::Tensor out = at::zeros({5 * world()}, dtype());
    const at::Tensor own = out.narrow(0, 5 * group.rank(), 5);
    own.copy_(of_rank(group.rank(), {5}));
    all_gather_into(out, own, 0, group).wait();
    expect_close(out, expected);
  });
}

TEST_P(Collectives, ReduceScatterIsThePartOfTheSum) {
  for (const int64_t extent : {1, 3, 1001})
    for (const int64_t dim : {0, 2}) {
      std::vector<int64_t> shape = {2, 5, 3};
      shape[dim] = extent * world();
      const at::Tensor expected = sum(shape);
      run_ranks(world(), [&](const Group& group) {
        const at::Tensor x = of_rank(group.rank(), shape);
        expect_close(reduce_scatter(x, dim, group), test::shard(expected, dim, group));
      });
    }
}

TEST_P(Collectives, ReduceScatterIntoTakesItsOutputFromTheInput) {
  const at::Tensor expected = sum({5 * world(), 2});
  run_ranks(world(), [&](const Group& group) {
    const at::Tensor x = of_rank(group.rank(), {5 * world(), 2});
    const at::Tensor own = x.narrow(0, 5 * group.rank(), 5);
    reduce_scatter_into(own, x, group).wait();
    expect_close(own, test::shard(expected, 0, group));
  });
}

/// Parts of which some are empty, some long, in the memory of the whole and beside it.
TEST_P(Collectives, PartsMayDifferInLength) {
  for (const int64_t unit : {1, 20'011}) {
    std::vector<int64_t> rows;
    for (int64_t r = 0; r < world(); ++r) rows.push_back((r * 7 + 1) % 3 * unit);
    const int64_t total = std::accumulate(rows.begin(), rows.end(), int64_t{0});
    const at::Tensor expected = sum({total, 2});
    run_ranks(world(), [&](const Group& group) {
      const auto begin = std::accumulate(rows.begin(), rows.begin() + group.rank(), int64_t{0});
      const auto own = [&](const at::Tensor& whole) {
        return whole.narrow(0, begin, rows[static_cast<size_t>(group.rank())]);
      };
      for (const bool beside : {false, true}) {
        const at::Tensor x = of_rank(group.rank(), {total, 2});
        const at::Tensor part = beside ? at::zeros_like(own(x)) : own(x);
        reduce_scatter_rows_into(part, x, rows, group).wait();
        expect_close(part, own(expected));
        const at::Tensor whole = at::zeros({total, 2}, dtype());
        if (!beside) own(whole).copy_(part);
        all_gather_rows_into(whole, beside ? part : own(whole), rows, group).wait();
        expect_close(whole, expected);
      }
    });
  }
}

TEST_P(Collectives, BroadcastCopiesTheRoots) {
  for (int root = 0; root < world(); ++root)
    run_ranks(world(), [&](const Group& group) {
      at::Tensor x = of_rank(group.rank(), {7, 3});
      broadcast_(x, root, group);
      expect_close(x, of_rank(root, {7, 3}));
      at::Tensor transposed = of_rank(group.rank(), {7, 3}).t();
      broadcast_(transposed, root, group);
      expect_close(transposed, of_rank(root, {7, 3}).t());
    });
}

TEST_P(Collectives, AllToAllSendsUnevenRows) {
  // Rank a sends (a + 2 b) mod 4 rows to rank b: some none, and not the same both ways.
  const auto rows = [](int from, int to) -> int64_t { return (from + 2 * to) % 4; };
  const auto message = [&](int from, int to) {
    return randn({rows(from, to), 3}, static_cast<uint64_t>(1000 + 50 * from + to), dtype());
  };
  run_ranks(world(), [&](const Group& group) {
    std::vector<int64_t> send_rows, recv_rows;
    std::vector<at::Tensor> sent, expected;
    for (int peer = 0; peer < group.size(); ++peer) {
      send_rows.push_back(rows(group.rank(), peer));
      // A group of one sends to itself and so expects what it sends.
      recv_rows.push_back(rows(peer, group.rank()));
      sent.push_back(message(group.rank(), peer));
      expected.push_back(message(peer, group.rank()));
    }
    expect_close(all_to_all_rows(at::cat(sent), send_rows, recv_rows, group), at::cat(expected));
  });
}

TEST_P(Collectives, AllToAllMovesTheSplitFromOneDimToAnother) {
  const at::Tensor full = randn({3 * world(), 2 * world(), 5}, 7, dtype());
  run_ranks(world(), [&](const Group& group) {
    const at::Tensor rows = test::shard(full, 0, group), columns = test::shard(full, 1, group);
    expect_close(all_to_all(rows, 1, 0, group), columns);
    expect_close(all_to_all(columns, 0, 1, group), rows);
  });
}

TEST_P(Collectives, NeighboursExchangeInARing) {
  run_ranks(world(), [&](const Group& group) {
    if (group.size() == 1) return;
    const int next = (group.rank() + 1) % group.size();
    const int previous = (group.rank() + group.size() - 1) % group.size();
    for (const int64_t extent : {1, 20001}) {
      const at::Tensor from_previous = at::empty({extent}, dtype());
      TransferBatch(group)
          .send(of_rank(group.rank(), {extent}), next)
          .recv(from_previous, previous)
          .start()
          .wait();
      expect_close(from_previous, of_rank(previous, {extent}));
    }
  });
}

TEST(Transfers, MeetInTheOrderOfTheirStart) {
  run_ranks(2, [](const Group& group) {
    std::vector<at::Tensor> tensors;
    TransferBatch batch(group);
    for (int i = 0; i < 5; ++i) {
      tensors.push_back(group.rank() == 0 ? at::full({3}, i, at::kFloat)
                                          : at::empty({3}, at::kFloat));
      group.rank() == 0 ? batch.send(tensors[i], 1) : batch.recv(tensors[i], 0);
    }
    batch.start().wait();
    for (int i = 0; i < 5; ++i) expect_close(tensors[i], at::full({3}, i, at::kFloat));
  });
}

TEST(Transfers, WriteStridedTensors) {
  run_ranks(2, [](const Group& group) {
    const at::Tensor expected = randn({3, 4}, 1).t();
    if (group.rank() == 0) {
      send(expected, 1, group);
    } else {
      const at::Tensor x = at::zeros({3, 4}, at::kDouble).t();
      recv(x, 0, group);
      expect_close(x, expected);
    }
  });
}

TEST(Transfers, WithAnotherShapeFailOnBothSides) {
  run_ranks(2, [](const Group& group) {
    const at::Tensor x = at::zeros({group.rank() == 0 ? 3 : 4}, at::kFloat);
    const std::string error =
        test::error_of([&] { group.rank() == 0 ? send(x, 1, group) : recv(x, 0, group); });
    EXPECT_THAT(error, HasSubstr("send #1 from rank 0 to rank 1 of group world"));
    EXPECT_THAT(error, HasSubstr("Float [3]"));
    EXPECT_THAT(error, HasSubstr("Float [4]"));
  });
}

TEST(AllReduce, RunsWhileItsRanksDoOtherWork) {
  run_ranks(3, [](const Group& group) {
    std::vector<at::Tensor> buckets;
    std::vector<Work> works;
    for (int i = 0; i < 4; ++i) {
      buckets.push_back(at::full({30000}, group.rank() + i, at::kFloat));
      works.push_back(all_reduce_start_(buckets[i], ReduceOp::kSum, group));
    }
    barrier(group); // every rank has started all four, so all four can finish without being waited
                    // for in order
    for (int i = 3; i >= 0; --i) {
      works[i].wait();
      EXPECT_TRUE(works[i].done());
      expect_close(buckets[i], at::full({30000}, 3 + 3 * i, at::kFloat));
    }
  });
}

TEST(AllReduce, SumsNarrowFloatsInFp32) {
  // 256 + 1 is 256 in bf16, so sixteen roundings would lose every 1; one rounding keeps the sum.
  run_ranks(16, [](const Group& group) {
    const at::Tensor x = at::full({3}, group.rank() == 0 ? 256 : 1, at::kBFloat16);
    expect_close(all_reduce(x, ReduceOp::kSum, group),
                 at::full({3}, 271, at::kFloat).to(at::kBFloat16));
  });
}

TEST(AllReduce, NanWinsTheMaximumFromEveryRank) {
  for (int bad = 0; bad < 3; ++bad)
    run_ranks(3, [&](const Group& group) {
      const double value = group.rank() == bad ? std::nan("") : group.rank();
      EXPECT_TRUE(
          std::isnan(all_reduce(at::full({1}, value), ReduceOp::kMax, group).item<double>()));
    });
}

TEST(AllReduce, RefusesToLoseAGradient) {
  const at::Tensor x = at::ones({2}).requires_grad_();
  EXPECT_THAT(test::error_of([&] { all_reduce(x, ReduceOp::kSum, Group()); }),
              HasSubstr("requires grad"));
}

TEST(AllReduce, MakesSavedTensorsStale) {
  run_ranks(2, [](const Group& group) {
    const at::Tensor weight = at::ones({2}).requires_grad_();
    const at::Tensor x = at::ones({2});
    const at::Tensor y = (weight * x).sum();
    all_reduce_(x, ReduceOp::kSum, group);
    EXPECT_THAT(test::error_of([&] { y.backward(); }),
                HasSubstr("modified by an inplace operation"));
  });
}

TEST(AllReduce, RefusesComplexNumbers) {
  run_ranks(2, [](const Group& group) {
    EXPECT_THROW(all_reduce(at::zeros({2}, at::kComplexFloat), ReduceOp::kSum, group), CommError);
  });
}

class Texts : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Worlds, Texts, testing::Values(1, 2, 4));

TEST_P(Texts, ReachTheRanksThatWantThem) {
  const auto text_of = [](int rank) { return std::string(static_cast<size_t>(7 * rank), 'a'); };
  run_ranks(GetParam(), [&](const Group& group) {
    std::vector<std::string> all;
    for (int rank = 0; rank < group.size(); ++rank) all.push_back(text_of(rank));
    EXPECT_EQ(gather_text(text_of(group.rank()), group), all);
    const int last = group.size() - 1;
    const std::vector<int> to = last == 0 ? std::vector<int>{0} : std::vector<int>{0, last};
    const bool wants = group.rank() == 0 || group.rank() == last;
    EXPECT_EQ(gather_text_to(to, text_of(group.rank()), group),
              wants ? all : std::vector<std::string>());
    EXPECT_EQ(gather_text_to({0}, "", group).size(), group.rank() == 0 ? all.size() : 0);
    EXPECT_EQ(broadcast_text(text_of(group.rank()), last, group), all.back());
  });
}

TEST_P(Texts, OfTheFirstErrorAreEverybodys) {
  run_ranks(GetParam(), [&](const Group& group) {
    int done = 0;
    together<ConfigError>(group, group.rank() == 0, [&] { ++done; });
    EXPECT_EQ(done, group.rank() == 0 ? 1 : 0);
    const bool last = group.rank() == group.size() - 1;
    const auto fails = [&] { throw DataError(fmt::format("of rank {}", group.rank())); };
    EXPECT_EQ(test::error_of([&] { together<ConfigError>(group, last, fails); }),
              fmt::format("of rank {}", group.size() - 1));
    EXPECT_EQ(first_error(group, true, fails), "of rank 0");
  });
}

TEST(GroupOfOne, ReturnsTheArgument) {
  const Group group = Group::self();
  const at::Tensor x = randn({4, 3}, 1);
  for (const at::Tensor& y :
       {all_reduce(x, ReduceOp::kSum, group), all_gather(x, 0, group), reduce_scatter(x, 1, group),
        all_to_all(x, 0, 1, group), all_to_all_rows(x, {4}, {4}, group)})
    EXPECT_TRUE(y.is_same(x));
  all_reduce_(x, ReduceOp::kMax, group);
  broadcast_(x, 0, group);
  barrier(group);
  expect_close(x, randn({4, 3}, 1));
  const at::Tensor out = at::zeros({4, 3}, at::kDouble);
  all_gather_into(out, x, 0, group).wait();
  expect_close(out, x);
}

TEST(Shapes, ThatCannotWorkAreRefusedBeforeAnyoneWaits) {
  run_ranks(2, [](const Group& group) {
    const at::Tensor x = at::zeros({3, 4}, at::kFloat);
    EXPECT_THROW(reduce_scatter(x, 0, group), ShapeError);
    EXPECT_THROW(all_gather(x, 2, group), ShapeError);
    EXPECT_THROW(all_gather(at::zeros({}, at::kFloat), 0, group), ShapeError);
    EXPECT_THROW(all_to_all_rows(x, {1, 1}, {1, 1}, group), ShapeError);
    EXPECT_THROW(all_to_all_rows(x, {3, 0}, {4, -1}, group), ShapeError);
    EXPECT_THROW(all_to_all(x, 0, 1, group), ShapeError);
    EXPECT_THROW((void)all_reduce_start_(x.t(), ReduceOp::kSum, group), ShapeError);
    EXPECT_THROW((void)all_gather_into(at::zeros({5, 4}, at::kFloat), x, 0, group), ShapeError);
    EXPECT_THROW(broadcast_(x, 2, group), CommError);
    EXPECT_THROW(send(x, group.rank(), group), CommError);
    barrier(group);
  });
}

TEST(Mismatch, OfShapesNamesGroupOperationNumberAndBothShapes) {
  run_ranks(3, [](const Group& world) {
    const Group group = world.split(0, world.rank(), "tp");
    barrier(group);
    const at::Tensor x = at::zeros({2, world.rank() == 1 ? 5 : 4}, at::kFloat);
    const std::string error = test::error_of([&] { all_reduce(x, ReduceOp::kSum, group); });
    EXPECT_THAT(error, HasSubstr("all_reduce #2 of group tp"));
    EXPECT_THAT(error, HasSubstr("Float [2, 4]"));
    EXPECT_THAT(error, HasSubstr("rank 1 calls all_reduce(sum) of Float [2, 5]"));
  });
}

TEST(Mismatch, OfDtypesIsNamed) {
  run_ranks(2, [](const Group& group) {
    const at::Tensor x = at::zeros({2}, group.rank() == 0 ? at::kFloat : at::kDouble);
    const std::string error = test::error_of([&] { all_gather(x, 0, group); });
    EXPECT_THAT(error, HasSubstr("all_gather #1 of group world"));
    EXPECT_THAT(error, HasSubstr("Float [2]"));
    EXPECT_THAT(error, HasSubstr("Double [2]"));
  });
}

TEST(Mismatch, OfOperationsIsNamed) {
  run_ranks(2, [](const Group& group) {
    const at::Tensor x = at::zeros({2}, at::kFloat);
    const std::string error = test::error_of([&] {
      if (group.rank() == 0)
        all_reduce(x, ReduceOp::kSum, group);
      else
        all_reduce(x, ReduceOp::kMax, group);
    });
    EXPECT_THAT(error, HasSubstr("rank 0 calls all_reduce(sum)"));
    EXPECT_THAT(error, HasSubstr("rank 1 calls all_reduce(max)"));
  });
}

TEST(Mismatch, OfPartsNamesTheirLengths) {
  run_ranks(2, [](const Group& group) {
    const std::vector<int64_t> rows =
        group.rank() == 0 ? std::vector<int64_t>{1, 3} : std::vector<int64_t>{2, 2};
    const at::Tensor whole = at::zeros({4}, at::kFloat),
                     part = group.rank() == 0 ? at::zeros({1}) : at::zeros({2});
    const std::string error =
        test::error_of([&] { reduce_scatter_rows_into(part, whole, rows, group).wait(); });
    EXPECT_THAT(error, HasSubstr("reduce_scatter #1 of group world"));
    EXPECT_THAT(error, testing::AnyOf(HasSubstr("Float [1, 3]"), HasSubstr("Float [1 | 3]")));
    EXPECT_THAT(error, HasSubstr("Float [2]"));
  });
}

TEST(Mismatch, OfRowsInAnAllToAllNamesThePair) {
  run_ranks(2, [](const Group& group) {
    const at::Tensor x = at::zeros({4, 3}, at::kFloat);
    const std::string error = test::error_of([&] {
      if (group.rank() == 0)
        all_to_all_rows(x, {1, 3}, {1, 2}, group);
      else
        all_to_all_rows(x, {2, 2}, {2, 2}, group); // expects 2 of the 3 rows that rank 0 sends
    });
    EXPECT_THAT(error,
                HasSubstr("rank 0 sends Float [3, 3] to rank 1, which expects Float [2, 3]"));
  });
}

} // namespace
} // namespace pentatron::comm
