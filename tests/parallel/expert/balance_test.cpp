// Auxiliary losses against sums in plain loops, their gradients against differences of these; the
// expert bias, capacity, and the selections that balance.
#include "pentatron/parallel/expert/balance.h"

#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>

#include "pentatron/parallel/expert/capacity.h"
#include "tests/nn/op_fixture.h"
#include "tests/support/ranks.h"

namespace pentatron::parallel {
namespace {

using test::randn;

constexpr int64_t kTokens = 12, kRouted = 5, kChoices = 2, kSamples = 3;
constexpr double kScale = 0.37; // weight / denominator

using Rows = std::vector<std::vector<double>>;

Rows rows_of(const at::Tensor& x) {
  Rows rows;
  for (int64_t t = 0; t < x.size(0); ++t) {
    const at::Tensor row = x[t].to(at::kDouble).contiguous();
    rows.emplace_back(row.const_data_ptr<double>(), row.const_data_ptr<double>() + row.numel());
  }
  return rows;
}

double score_of(double logit, RouterScore score) {
  if (score == RouterScore::kSigmoid) return 1 / (1 + std::exp(-logit));
  if (score == RouterScore::kSqrtSoftplus) return std::sqrt(std::log1p(std::exp(logit)));
  return std::exp(logit);
}

/// Samples of unequal length; sample_of[t].
std::vector<int64_t> sample_of() {
  return {0, 0, 0, 1, 1, 1, 1, 1, 2, 2, 2, 2};
}

bool is_real(int64_t token, bool padded) {
  return !padded || (token != 0 && token != 11 && token != 7);
}

/// The sum of a term over the tokens, times nothing: what the step divides by its denominator.
double value_of(const Rows& logits, const at::Tensor& experts, Balance balance, RouterScore score,
                bool padded, const std::vector<double>& last) {
  double total = 0;
  const bool of_samples = balance == Balance::kSequence;
  for (int64_t s = 0; s < (of_samples ? kSamples : 1); ++s) {
    std::vector<double> p(kRouted, 0), c(kRouted, 0);
    double tokens = 0;
    for (int64_t t = 0; t < kTokens; ++t) {
      if (!is_real(t, padded)) continue;
      if (of_samples && sample_of()[static_cast<size_t>(t)] != s) continue;
      ++tokens;
      double sum = 0;
      for (const double x : logits[static_cast<size_t>(t)]) sum += score_of(x, score);
      for (size_t e = 0; e < kRouted; ++e)
        p[e] += score_of(logits[static_cast<size_t>(t)][e], score) / sum;
      for (int64_t j = 0; j < kChoices; ++j)
        ++c[static_cast<size_t>(experts[t][j].item<int64_t>())];
    }
    for (size_t e = 0; e < kRouted; ++e)
      total += balance == Balance::kGlobal ? kRouted * p[e] * last[e]
                                           : kRouted / (kChoices * tokens * tokens) * p[e] * c[e];
  }
  return total;
}

double z_of(const Rows& logits, bool padded) {
  double total = 0;
  for (int64_t t = 0; t < kTokens; ++t) {
    double sum = 0;
    for (const double x : logits[static_cast<size_t>(t)]) sum += std::exp(x);
    if (is_real(t, padded)) total += std::log(sum) * std::log(sum);
  }
  return total;
}

struct TermCase {
  const char* name;
  std::vector<Balance> balance;
  RouterScore score = RouterScore::kSoftmax;
  bool z = false, padded = false;
};
std::ostream& operator<<(std::ostream& out, const TermCase& c) {
  return out << c.name;
}

class Auxiliary : public testing::TestWithParam<TermCase> {};

TEST_P(Auxiliary, IsWhatLoopsGiveAndItsGradientThatOfDifferences) {
  const TermCase& c = GetParam();
  const RouterOptions options{
      .experts = kRouted, .top_k = kChoices, .score = c.score, .score_first = true};
  const at::Tensor logits = randn({kTokens, kRouted}, 5);
  const at::Tensor experts = route(logits, {}, options).experts;
  const std::vector<double> last = {0.1, 0.4, 0.05, 0.2, 0.25};
  const nn::ExpertLoads loads = {{"layer", at::tensor(last, at::kDouble)}};
  at::Tensor real;
  if (c.padded) {
    real = at::zeros({kTokens}, at::kBool);
    for (int64_t t = 0; t < kTokens; ++t) real[t] = is_real(t, true);
  }
  const auto sum = [&](const at::Tensor& x) {
    const Rows rows = rows_of(x);
    double value = c.z ? z_of(rows, c.padded) : 0;
    for (const Balance balance : c.balance)
      value += value_of(rows, experts, balance, c.score, c.padded, last);
    return value;
  };

  test::Pass pass(nn::SequenceLayout::ragged(5, {0, 1, 2}, {0, 3, 8, 12}, {0, 3, 8, 12}, at::kCPU));
  pass.ctx.training = true;
  pass.ctx.expert_loads = &loads;
  if (c.z) pass.ctx.loss_scales[kZLoss] = kScale;
  for (const Balance balance : c.balance) pass.ctx.loss_scales[balance_term(balance)] = kScale;
  const at::Tensor dy = randn({kTokens, kChoices}, 6);
  const at::Tensor leaf = logits.clone().requires_grad_(true);
  const at::Tensor plain = route(leaf, {}, options).probs;
  const at::Tensor probs = with_auxiliary_losses(plain,
                                                 {.logits = leaf,
                                                  .experts = experts,
                                                  .samples = at::tensor(sample_of(), at::kLong),
                                                  .real = real},
                                                 {.balance = c.balance, .z_loss = c.z}, options,
                                                 "layer", comm::Group(), pass.ctx);
  EXPECT_TRUE(at::equal(probs, plain));
  probs.backward(dy);

  double told = 0;
  for (const auto& [term, value] : pass.state.loss_sums) told += value.item<double>();
  EXPECT_NEAR(told, sum(logits), 1e-12);
  const at::Tensor own = logits.clone().requires_grad_(true);
  route(own, {}, options).probs.backward(dy);
  constexpr double kStep = 1e-6;
  for (int64_t i = 0; i < logits.numel(); ++i) {
    at::Tensor up = logits.clone(), down = logits.clone();
    up.view({-1})[i] += kStep;
    down.view({-1})[i] -= kStep;
    EXPECT_NEAR((leaf.grad() - own.grad()).view({-1})[i].item<double>(),
                kScale * (sum(up) - sum(down)) / (2 * kStep), 1e-8)
        << i;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Terms, Auxiliary,
    testing::Values(
        TermCase{"z", {}, RouterScore::kSoftmax, true},
        TermCase{"z_padded", {}, RouterScore::kSigmoid, true, true},
        TermCase{"global", {Balance::kGlobal}}, TermCase{"sequence", {Balance::kSequence}},
        TermCase{"sequence_sigmoid", {Balance::kSequence}, RouterScore::kSigmoid},
        TermCase{"sequence_padded", {Balance::kSequence}, RouterScore::kSoftmax, false, true},
        TermCase{"sequence_and_global",
                 {Balance::kSequence, Balance::kGlobal, Balance::kMicrobatch},
                 RouterScore::kSoftmax,
                 true},
        TermCase{"microbatch", {Balance::kMicrobatch}, RouterScore::kSqrtSoftplus},
        TermCase{"global_and_z_padded", {Balance::kGlobal}, RouterScore::kSigmoid, true, true}),
    [](const auto& info) { return info.param.name; });

TEST(AuxiliaryTerms, AreOneForEqualLoad) {
  const RouterOptions options{.experts = 4, .top_k = 2, .score_first = true};
  const at::Tensor experts = balanced_experts(at::arange(8, at::kLong), options);
  test::Pass pass(8);
  pass.ctx.loss_scales[balance_term(Balance::kSequence)] = 1;
  const at::Tensor logits = at::zeros({8, 4}, at::kDouble).requires_grad_(true);
  with_auxiliary_losses(
      route(logits, {.forced = experts}, options).probs,
      {.logits = logits, .experts = experts, .samples = at::zeros({8}, at::kLong), .real = {}},
      {.balance = {Balance::kSequence}}, options, "layer", comm::Group(), pass.ctx);
  EXPECT_NEAR(pass.state.loss_sum("seq load balancing loss"), 1, 1e-15);
}

TEST(AuxiliaryTerms, TheFirstStepHasNoGlobalLoss) {
  const RouterOptions options{.experts = 4, .top_k = 2};
  const nn::ExpertLoads none;
  test::Pass pass(8);
  pass.ctx.expert_loads = &none;
  pass.ctx.loss_scales[balance_term(Balance::kGlobal)] = 1;
  const at::Tensor logits = randn({8, 4}, 1).requires_grad_(true);
  const Routed routed = route(logits, {}, options);
  const at::Tensor probs = with_auxiliary_losses(routed.probs,
                                                 {.logits = logits,
                                                  .experts = routed.experts,
                                                  .samples = at::zeros({8}, at::kLong),
                                                  .real = {}},
                                                 {.balance = {Balance::kGlobal}}, options, "layer",
                                                 comm::Group(), pass.ctx);
  EXPECT_TRUE(probs.is_same(routed.probs));
  EXPECT_TRUE(pass.state.loss_sums.empty());
}

TEST(ExpertBias, MovesTowardsEqualLoad) {
  const at::Tensor bias = at::zeros({4}, at::kFloat);
  update_expert_bias(bias, at::tensor({3, 5, 4, 4}, at::kLong), 0.001);
  EXPECT_TRUE(at::allclose(bias, at::tensor({0.001f, -0.001f, 0.0f, 0.0f})));
  // The mean is no integer: nobody has it.
  update_expert_bias(bias.zero_(), at::tensor({1, 0, 0, 0}, at::kLong), 0.5);
  EXPECT_TRUE(at::equal(bias, at::tensor({-0.5f, 0.5f, 0.5f, 0.5f})));
}

/// bias += rate sign(mean - count), in random steps one after the other.
TEST(ExpertBias, IsTheSumOfTheSignsOfAllSteps) {
  constexpr int64_t kExperts = 7;
  const at::Tensor bias = at::zeros({kExperts}, at::kDouble);
  std::vector<double> expected(kExperts, 0);
  for (uint64_t step = 0; step < 50; ++step) {
    const at::Tensor counts = (4 + randn({kExperts}, step)).round().to(at::kLong);
    const double mean = static_cast<double>(counts.sum().item<int64_t>()) / kExperts;
    for (int64_t e = 0; e < kExperts; ++e) {
      const auto count = static_cast<double>(counts[e].item<int64_t>());
      if (count != mean) expected[static_cast<size_t>(e)] += count < mean ? 0.25 : -0.25;
    }
    update_expert_bias(bias, counts, 0.25);
  }
  for (int64_t e = 0; e < kExperts; ++e)
    EXPECT_EQ(bias[e].item<double>(), expected[static_cast<size_t>(e)]) << e;
}

TEST(ChoiceCounts, LeaveOutPadding) {
  const at::Tensor experts = at::tensor({0, 1, 1, 2, 2, 0}, at::kLong).view({3, 2});
  EXPECT_TRUE(at::equal(choice_counts(experts, {}, 4), at::tensor({2, 2, 2, 0}, at::kLong)));
  const at::Tensor real = at::tensor({1, 0, 1}, at::kLong).to(at::kBool);
  EXPECT_TRUE(at::equal(choice_counts(experts, real, 4), at::tensor({2, 1, 1, 0}, at::kLong)));
}

TEST(Capacity, IsRoundedUpAndNoMoreThanTheTokens) {
  EXPECT_EQ(expert_capacity(10, 2, 4, 1.0), 5);
  EXPECT_EQ(expert_capacity(10, 2, 4, 1.25), 7);  // 6.25
  EXPECT_EQ(expert_capacity(100, 2, 4, 1.1), 55); // and not 56, by rounding
  EXPECT_EQ(expert_capacity(10, 2, 4, 100), 10);
  EXPECT_EQ(expert_capacity(0, 2, 4, 1.0), 0);
}

/// By the definition: an expert keeps the `capacity` choices that come first in the order.
TEST(Capacity, KeepsTheGreatestProbsOrTheFirstPositions) {
  for (const bool by_position : {false, true}) {
    const at::Tensor experts = route(randn({30, 6}, 1), {}, {.experts = 6, .top_k = 2}).experts;
    const at::Tensor probs = (randn({30, 2}, 2) * 4).round().abs(); // ties
    const CapacityOptions options{.factor = 0.7, .by_position = by_position};
    const at::Tensor kept = kept_choices(experts, probs, {}, 6, options);
    const int64_t capacity = expert_capacity(30, 2, 6, 0.7);
    ASSERT_EQ(capacity, 7);
    for (int64_t e = 0; e < 6; ++e) {
      std::vector<std::pair<double, int64_t>> choices;
      for (int64_t i = 0; i < 60; ++i)
        if (experts.view({-1})[i].item<int64_t>() == e)
          choices.emplace_back(by_position ? 0 : -probs.view({-1})[i].item<double>(), i);
      std::ranges::sort(choices);
      for (size_t i = 0; i < choices.size(); ++i)
        EXPECT_EQ(kept.view({-1})[choices[i].second].item<bool>(),
                  static_cast<int64_t>(i) < capacity);
    }
  }
}

TEST(Capacity, OfPaddingIsWhatRealTokensLeave) {
  const at::Tensor experts = at::zeros({6, 1}, at::kLong), probs = at::ones({6, 1}, at::kDouble);
  const at::Tensor real = at::tensor({0, 0, 1, 0, 1, 1}, at::kLong).to(at::kBool);
  const CapacityOptions options{.factor = 4.0 / 6, .by_position = true};
  EXPECT_TRUE(at::equal(kept_choices(experts, probs, real, 1, options).squeeze(1),
                        at::tensor({1, 0, 1, 0, 1, 1}, at::kLong).to(at::kBool)));
}

TEST(Sinkhorn, GivesEveryExpertAndTokenAsMuch) {
  const at::Tensor x = sinkhorn(3 * randn({32, 4}, 1) + 500);
  EXPECT_LT((x.sum(0) - 1.0 / 4).abs().max().item<double>(), 1e-3);
  EXPECT_LT((x.sum(1) - 1.0 / 32).abs().max().item<double>(), 1e-3);
}

TEST(ForcedBalance, GivesEveryExpertAsManyTokens) {
  const RouterOptions options{.experts = 6, .top_k = 4};
  const at::Tensor experts = balanced_experts(at::arange(24, at::kLong), options);
  EXPECT_TRUE(at::equal(choice_counts(experts, {}, 6), at::full({6}, 16, at::kLong)));
  for (int64_t t = 0; t < 24; ++t)
    EXPECT_EQ(std::get<0>(at::sort(experts[t])).diff().min().item<int64_t>() > 0, true);
}

TEST(Jitter, IsAFunctionOfTheAddressAndWithinItsRange) {
  const at::Tensor x = at::ones({50, 8}, at::kDouble).requires_grad_(true);
  const at::Tensor ids = at::arange(50, at::kLong);
  const at::Tensor y = jitter(x, ids, 0.1, 3, 7);
  EXPECT_LE((y - 1).abs().max().item<double>(), 0.1 + 1e-7);
  EXPECT_GT((y - 1).abs().max().item<double>(), 0.09);
  EXPECT_TRUE(
      at::equal(y.slice(0, 20, 30), jitter(x.slice(0, 20, 30), ids.slice(0, 20, 30), 0.1, 3, 7)));
  EXPECT_FALSE(at::equal(y, jitter(x, ids, 0.1, 4, 7)));
  EXPECT_FALSE(at::equal(y, jitter(x, ids, 0.1, 3, 8)));
  y.sum().backward();
  EXPECT_TRUE(at::equal(x.grad(), y.detach()));
}

} // namespace
} // namespace pentatron::parallel
