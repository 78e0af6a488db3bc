// The way to the experts and back on several ranks: who gets what, sums, adjoints.
#include "pentatron/parallel/expert/dispatch.h"

#include <gtest/gtest.h>

#include "pentatron/comm/collectives.h"
#include "pentatron/config/config.h"
#include "pentatron/parallel/expert/order.h"
#include "tests/nn/op_fixture.h"
#include "tests/support/ranks.h"

namespace pentatron::parallel {
namespace {

using test::expect_close;
using test::randn;
using test::run_ranks;

constexpr int64_t kExperts = 4, kTopK = 2;
constexpr test::Tolerance kExact{1e-13, 1e-13};

/// Choices of a rank's tokens: none of expert 2, and rank 1 has no tokens at all.
at::Tensor choices_of(int rank) {
  if (rank == 1) return at::empty({0, kTopK}, at::kLong);
  const std::vector<std::vector<int64_t>> of = {{3, 0}, {0, 1}, {1, 3}, {3, 1}, {0, 3}};
  std::vector<int64_t> flat;
  for (int64_t t = 0; t < 3 + rank; ++t) {
    const auto& one = of[static_cast<size_t>((t + rank) % 5)];
    flat.insert(flat.end(), one.begin(), one.end());
  }
  return at::tensor(flat, at::kLong).view({-1, kTopK});
}

/// Rank and number of each token, so that a row tells where it is from.
at::Tensor tokens_of(int rank) {
  const at::Tensor x = at::zeros({choices_of(rank).size(0), 3}, at::kDouble);
  for (int64_t t = 0; t < x.size(0); ++t) x[t] = 100.0 * rank + static_cast<double>(t);
  return x;
}

struct Ranks {
  int ranks, etp;
  DispatchKind kind = DispatchKind::kAllToAll;
  bool operators = false; ///< of GPUs
};
std::ostream& operator<<(std::ostream& out, const Ranks& r) {
  return out << r.ranks << " ranks, etp " << r.etp << ", " << config::to_string(r.kind)
             << (r.operators ? ", by operators" : "");
}

class DispatchOnRanks : public testing::TestWithParam<Ranks> {
 protected:
  DispatchOnRanks() { order_by_operators_on_cpus(GetParam().operators); }
  ~DispatchOnRanks() override { order_by_operators_on_cpus(false); }
};

TEST_P(DispatchOnRanks, EveryExpertGetsItsTokensInOrder) {
  const auto [ranks, etp, kind, operators] = GetParam();
  run_ranks(ranks, [&, etp = etp, ranks = ranks, kind = kind](const comm::Group& group) {
    const ExpertParallel parallel{group, etp, {}, kind};
    const at::Tensor chosen = choices_of(group.rank());
    const Dispatch dispatch(chosen, kExperts, parallel);
    const at::Tensor rows =
        dispatch.arrive(dispatch.send(tokens_of(group.rank()), at::ones_like(chosen, at::kDouble)))
            .rows;
    const int64_t local = parallel.local_experts(kExperts), first = group.rank() / etp * local;
    for (int64_t e = 0; e < local; ++e) {
      std::vector<double> expected, actual;
      for (int r = 0; r < ranks; ++r) {
        const at::Tensor chosen = choices_of(r);
        for (int64_t t = 0; t < chosen.size(0); ++t)
          for (int64_t j = 0; j < kTopK; ++j)
            if (chosen[t][j].item<int64_t>() == first + e)
              expected.push_back(100.0 * r + static_cast<double>(t));
      }
      for (const nn::RowRange& range : dispatch.ranges())
        for (int64_t i = 0; range.matrix == e && i < range.rows; ++i)
          actual.push_back(rows[range.begin + i][0].item<double>());
      EXPECT_EQ(actual, expected) << "expert " << first + e;
    }
  });
}

TEST_P(DispatchOnRanks, RowsComeBackToTheirTokensAndTheirGradientsGoTheSameWays) {
  const auto [ranks, etp, kind, operators] = GetParam();
  run_ranks(ranks, [&, etp = etp, kind = kind](const comm::Group& group) {
    const Dispatch dispatch(choices_of(group.rank()), kExperts, {group, etp, {}, kind});
    const int64_t tokens = choices_of(group.rank()).size(0);
    const at::Tensor x = randn({tokens, 3}, 10 + group.rank()),
                     probs = randn({tokens, kTopK}, 20 + group.rank()),
                     dy = randn({tokens, 3}, 30 + group.rank());
    const at::Tensor x_leaf = x.clone().requires_grad_(true),
                     p_leaf = probs.clone().requires_grad_(true);
    // Experts that only weigh: each of etp ranks adds the same.
    const Dispatch::Arrived arrived = dispatch.arrive(dispatch.send(x_leaf, p_leaf));
    const at::Tensor y = dispatch.take_back(arrived.rows * arrived.values.unsqueeze(1));
    expect_close(y, etp * x * probs.sum(1, true), kExact);
    y.backward(dy);
    expect_close(x_leaf.grad(), etp * dy * probs.sum(1, true), kExact);
    expect_close(p_leaf.grad(), etp * (x * dy).sum(1, true).expand_as(probs), kExact);
  });
}

TEST_P(DispatchOnRanks, DroppedChoicesGiveNothingAndExpertsHaveTheirLeastRows) {
  const auto [ranks, etp, kind, operators] = GetParam();
  constexpr int64_t kLeast = 3;
  run_ranks(ranks, [&, etp = etp, ranks = ranks, kind = kind](const comm::Group& group) {
    const at::Tensor chosen = choices_of(group.rank()).clone();
    if (chosen.size(0) > 1) chosen[1][0] = -1;
    const Dispatch dispatch(chosen, kExperts, {group, etp, {}, kind}, kLeast);
    const at::Tensor x = randn({chosen.size(0), 3}, 10 + group.rank()),
                     probs = randn({chosen.size(0), kTopK}, 20 + group.rank());
    const Dispatch::Arrived arrived = dispatch.arrive(dispatch.send(x, probs));
    const at::Tensor y = dispatch.take_back(arrived.rows * arrived.values.unsqueeze(1));
    expect_close(y, etp * x * probs.masked_fill(chosen < 0, 0).sum(1, true), kExact);
    std::vector<int64_t> rows(kExperts);
    for (const nn::RowRange& range : dispatch.ranges())
      rows[static_cast<size_t>(range.matrix)] += range.rows;
    for (int64_t e = 0; e < kExperts / (ranks / etp); ++e)
      EXPECT_GE(rows[static_cast<size_t>(e)], kLeast * ranks) << e;
  });
}

TEST_P(DispatchOnRanks, TwoPassesTakeTurnsWhereTheyWait) {
  const auto [ranks, etp, kind, operators] = GetParam();
  run_ranks(ranks, [&, ranks = ranks, etp = etp, kind = kind](const comm::Group& group) {
    const auto turns = std::make_shared<nn::Turns>();
    const ExpertParallel parallel{group, etp, {}, kind, false, turns};
    const at::Tensor chosen = choices_of(group.rank());
    const at::Tensor x = randn({chosen.size(0), 3}, 10 + group.rank()),
                     ones = at::ones({chosen.size(0), kTopK}, at::kDouble);
    std::string seen;
    const auto forward = [&](const at::Tensor& in) {
      const Dispatch dispatch(chosen, kExperts, parallel);
      seen += 'c'; // counted
      const Dispatch::Arrived arrived = dispatch.arrive(dispatch.send(in, ones));
      seen += 'a';
      at::Tensor y = dispatch.take_back(arrived.rows * arrived.values.unsqueeze(1));
      seen += 'f';
      return y;
    };
    const at::Tensor leaf = x.clone().requires_grad_(true);
    const at::Tensor earlier = forward(leaf);
    at::Tensor y;
    seen.clear();
    turns->run([&] { y = forward(2 * x); },
               [&] {
                 earlier.sum().backward();
                 seen += 'b';
               });
    EXPECT_EQ(seen, ranks > 1 ? "cabf" : "cafb");
    expect_close(y, 2.0 * etp * kTopK * x, kExact);
    expect_close(leaf.grad(), at::full_like(x, static_cast<double>(etp * kTopK)), kExact);
  });
}

INSTANTIATE_TEST_SUITE_P(
    Ranks, DispatchOnRanks,
    testing::Values(
        Ranks{1, 1}, Ranks{2, 1}, Ranks{2, 2}, Ranks{4, 1}, Ranks{4, 2}, Ranks{8, 2},
        Ranks{1, 1, DispatchKind::kAllGather}, Ranks{2, 1, DispatchKind::kAllGather},
        Ranks{2, 2, DispatchKind::kAllGather}, Ranks{4, 2, DispatchKind::kAllGather},
        Ranks{8, 2, DispatchKind::kAllGather}, Ranks{1, 1, DispatchKind::kAllToAll, true},
        Ranks{2, 1, DispatchKind::kAllToAll, true}, Ranks{4, 2, DispatchKind::kAllToAll, true},
        Ranks{2, 2, DispatchKind::kAllGather, true}, Ranks{4, 1, DispatchKind::kAllGather, true}));

TEST(OwnRows, AreABlockOfEachRankAndJoinAgain) {
  for (const int64_t tokens : {1, 6, 7}) {
    run_ranks(4, [&](const comm::Group& group) {
      const TensorParallel tp(group);
      const at::Tensor x = randn({tokens, 3}, 1), dy = randn({tokens, 3}, 2);
      const at::Tensor leaf = x.clone().requires_grad_(true);
      const at::Tensor own = own_rows(leaf, tp);
      const int64_t each = (tokens + 3) / 4, begin = std::min(tokens, group.rank() * each);
      expect_close(own, x.slice(0, begin, std::min(tokens, begin + each)), kExact);
      const at::Tensor y = join_rows(own * 2, tokens, tp);
      expect_close(y, 2 * x, kExact);
      y.backward(dy);
      expect_close(leaf.grad(), 2 * dy, kExact);
      // Under sequence parallel a rank has its own already.
      EXPECT_TRUE(own_rows(x, {group, true, false}).is_same(x));
    });
  }
}

TEST(DroppedChoices, AreNotSentAndGiveNothingBack) {
  for (const auto& [least, kind] : {std::pair<int64_t, DispatchKind>{0, DispatchKind::kAllToAll},
                                    {3, DispatchKind::kAllToAll},
                                    {0, DispatchKind::kAllGather},
                                    {3, DispatchKind::kAllGather}}) {
    const at::Tensor experts = at::tensor({0, 1, -1, 1, 2, -1}, at::kLong).view({3, 2});
    const Dispatch dispatch(experts, kExperts, {comm::Group(), 1, {}, kind}, least);
    const at::Tensor x = randn({3, 4}, 1), dy = randn({3, 4}, 2),
                     ones = at::ones({3, 2}, at::kDouble);
    const auto r = test::differentiate(
        [&](const auto& in) {
          return dispatch.take_back(dispatch.arrive(dispatch.send(in[0], ones)).rows);
        },
        {x}, dy);
    const at::Tensor times = at::tensor({2.0, 1.0, 1.0}, at::kDouble).unsqueeze(1);
    expect_close(r.y, x * times, kExact);
    expect_close(r.grads[0], dy * times, kExact);
    int64_t rows = 0;
    for (const nn::RowRange& range : dispatch.ranges()) {
      EXPECT_GE(range.rows, least);
      rows += range.rows;
    }
    EXPECT_EQ(rows, least == 0 ? 4 : kExperts * least);
    // The number of a row without a token is 0.
    const at::Tensor values = dispatch.arrive(dispatch.send(x, ones)).values;
    EXPECT_EQ(values.sum().item<double>(), 4);
  }
}

} // namespace
} // namespace pentatron::parallel
