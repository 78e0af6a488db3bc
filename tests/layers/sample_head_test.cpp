// The first token of each sample, wherever samples begin and whichever rank holds them.
#include "pentatron/layers/sample_head.h"

#include "tests/nn/op_fixture.h"
#include "tests/support/ranks.h"

#include <gtest/gtest.h>

namespace pentatron::layers {
namespace {

void expect_first_tokens(const nn::SequenceLayout& layout, const std::vector<int64_t>& starts,
                         int ranks) {
  const at::Tensor x = test::randn({layout.tokens(), 3}, 1), dy = test::randn({layout.batch, 3}, 2),
                   dx = at::zeros_like(x);
  for (size_t i = 0; i < starts.size(); ++i) dx[starts[i]].copy_(dy[static_cast<int64_t>(i)]);
  test::run_ranks(ranks, [&](const comm::Group& group) {
    test::Pass pass(layout);
    const parallel::TensorParallel tp(group, /*sequence_parallel=*/ranks > 1,
                                      /*overlap_products=*/false);
    if (ranks > 1) pass.layout.cut_outer(group.rank(), ranks);
    const auto actual =
        test::differentiate([&](const auto& in) { return first_tokens(in[0], tp, pass.ctx); },
                            {pass.layout.outer(x)}, dy);
    EXPECT_TRUE(at::equal(actual.y, x.index_select(0, at::tensor(starts, at::kLong))));
    EXPECT_TRUE(at::equal(actual.grads[0], pass.layout.outer(dx)));
  });
}

TEST(FirstTokens, AreWhereSamplesBegin) {
  const auto dense = nn::SequenceLayout::dense(3, 4, {1, 2, 3}, at::kCPU);
  const auto ragged =
      nn::SequenceLayout::ragged(7, {1, 2, 3, 4}, {0, 1, 2, 9, 12}, {0, 1, 2, 9, 12}, at::kCPU);
  for (const int ranks : {1, 2, 4}) { // of 4, one holds no first token
    expect_first_tokens(dense, {0, 4, 8}, ranks);
    expect_first_tokens(ragged, {0, 1, 2, 9}, ranks);
  }
}

} // namespace
} // namespace pentatron::layers
