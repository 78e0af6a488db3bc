// What context-parallel ranks exchange, against the tensor of all tokens.
#include "pentatron/parallel/context/exchange.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "pentatron/base/format.h"
#include "pentatron/comm/recorder.h"
#include "pentatron/parallel/context/zigzag.h"
#include "tests/support/ranks.h"
#include "tests/support/tensors.h"

namespace pentatron::parallel {
namespace {

using test::randn;

nn::SequenceLayout samples() {
  return nn::SequenceLayout::ragged(20, {5, 9}, {0, 17, 37}, {0, 17, 37}, at::kCPU);
}
std::vector<nn::SampleChunk> all_of(const nn::SequenceLayout& whole) {
  std::vector<nn::SampleChunk> all;
  for (int64_t b = 0; b < whole.batch; ++b) {
    const auto i = static_cast<size_t>(b);
    all.push_back({b, 0, whole.sample_starts[i + 1] - whole.sample_starts[i]});
  }
  return all;
}

class Exchange : public testing::TestWithParam<int> {};

TEST_P(Exchange, GatheredTokensLieInOrderOfTheSamples) {
  const nn::SequenceLayout whole = samples();
  const at::Tensor x = randn({whole.tokens(), 3, 2}, 1);
  test::run_ranks(GetParam(), [&](const comm::Group& group) {
    const TokenSplit split = zigzag_split(whole, group.size());
    const at::Tensor own =
        rows_of_chunks(x, whole, zigzag_chunks(whole, group.rank(), group.size()));
    EXPECT_TRUE(at::equal(gather_tokens(own, split, all_of(whole), group), x));
  });
}

TEST_P(Exchange, OwnersGetTheSumOfAllRanks) {
  const nn::SequenceLayout whole = samples();
  test::run_ranks(GetParam(), [&](const comm::Group& group) {
    const TokenSplit split = zigzag_split(whole, group.size());
    at::Tensor sum = at::zeros({whole.tokens(), 2, 3}, at::kDouble);
    for (int rank = 0; rank < group.size(); ++rank)
      sum += randn(sum.sizes(), static_cast<uint64_t>(rank));
    const at::Tensor own = sum_to_owners(randn(sum.sizes(), static_cast<uint64_t>(group.rank())),
                                         split, all_of(whole), group);
    test::expect_close(own,
                       rows_of_chunks(sum, whole, zigzag_chunks(whole, group.rank(), group.size())),
                       {1e-14, 1e-14});
  });
}

TEST_P(Exchange, HeadsForTokensAndBack) {
  const nn::SequenceLayout whole = samples();
  const int64_t heads = 2 * GetParam();
  const at::Tensor x = randn({whole.tokens(), heads, 5}, 1);
  test::run_ranks(GetParam(), [&](const comm::Group& group) {
    const TokenSplit split = zigzag_split(whole, group.size());
    const at::Tensor own =
        rows_of_chunks(x, whole, zigzag_chunks(whole, group.rank(), group.size()));
    const at::Tensor mine = heads_for_tokens(own, split, all_of(whole), group);
    EXPECT_TRUE(at::equal(mine, x.narrow(1, 2 * group.rank(), 2)));
    EXPECT_TRUE(at::equal(tokens_for_heads(mine, split, all_of(whole), group), own));
  });
}

TEST_P(Exchange, HopsBringTheRowsOfEveryRank) {
  const nn::SequenceLayout whole = samples();
  const at::Tensor x = randn({whole.tokens(), 1, 2}, 1);
  test::run_ranks(GetParam(), [&](const comm::Group& group) {
    const TokenSplit split = zigzag_split(whole, group.size());
    at::Tensor here = rows_of_chunks(x, whole, zigzag_chunks(whole, group.rank(), group.size()));
    for (int hop = 1; hop <= group.size(); ++hop) {
      const int source = rank_before(group, hop);
      here = Hop(here, split.rows[static_cast<size_t>(source)], group).wait();
      EXPECT_TRUE(
          at::equal(here, rows_of_chunks(x, whole, zigzag_chunks(whole, source, group.size()))));
    }
  });
}

TEST_P(Exchange, HopsThatAreLateBeginWhenTheyAreAwaited) {
  test::run_ranks(GetParam(), [&](const comm::Group& world) {
    const auto recorder = std::make_shared<comm::Recorder>();
    recorder->enable(true);
    const comm::Group group = comm::recorded(world, recorder);
    const at::Tensor x = at::full({1}, static_cast<double>(group.rank()), at::kDouble);
    for (const bool late : {false, true}) {
      Hop hop(x, 1, group, late);
      const double awaited = monotonic_s();
      EXPECT_EQ(hop.wait().item<double>(), rank_before(group, 1));
      const std::vector<comm::RecordedOperation> all = recorder->take();
      ASSERT_EQ(all.size(), 1u);
      EXPECT_EQ(all[0].start_s >= awaited, late);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, Exchange, testing::Values(2, 3, 5));

TEST(ExchangeAmongNeighbours, MakesTheChunksOfFewerRanks) {
  const nn::SequenceLayout whole = samples();
  const at::Tensor x = randn({whole.tokens(), 4, 3}, 1);
  for (int pair = 0; pair < 2; ++pair) {
    test::run_ranks(2, [&](const comm::Group& group) {
      const std::vector<nn::SampleChunk> target = zigzag_chunks(whole, pair, 2);
      const TokenSplit split = zigzag_split(whole, 2 * pair, 2, 4);
      const at::Tensor own =
          rows_of_chunks(x, whole, zigzag_chunks(whole, 2 * pair + group.rank(), 4));
      const at::Tensor mine = heads_for_tokens(own, split, target, group);
      EXPECT_TRUE(at::equal(mine, rows_of_chunks(x.narrow(1, 2 * group.rank(), 2), whole, target)));
      EXPECT_TRUE(at::equal(tokens_for_heads(mine, split, target, group), own));
    });
  }
}

} // namespace
} // namespace pentatron::parallel
