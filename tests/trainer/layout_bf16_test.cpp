// In bf16 sums over ranks round otherwise, so layouts agree in the mean over seeds.
#include <gtest/gtest.h>

#include <cmath>
#include <iostream>

#include "tests/trainer/layout_runs.h"

namespace pentatron::trainer {
namespace {

constexpr int kSeeds = 10;
/// Half a unit in the last place of bf16. Seeds differ far more than layouts, so standard errors
/// alone would let dropout of the wrong tokens pass.
constexpr double kRounding = 0x1p-9;

/// Mean of a loss curve over seeds, and its standard error, by step.
struct Curve {
  std::vector<double> mean, error;
};

Curve mean_curve(const std::string& work, int ranks, const std::string& keys) {
  std::vector<std::vector<double>> runs;
  for (int seed = 1; seed <= kSeeds; ++seed) {
    const std::string more = " dtype=bf16 seed=" + std::to_string(seed);
    runs.push_back(test::train_layout(work, ranks, keys + more).losses);
  }
  Curve curve;
  for (size_t step = 0; step < runs[0].size(); ++step) {
    double sum = 0, squares = 0;
    for (const std::vector<double>& run : runs) sum += run[step];
    const double mean = sum / kSeeds;
    for (const std::vector<double>& run : runs) squares += (run[step] - mean) * (run[step] - mean);
    curve.mean.push_back(mean);
    curve.error.push_back(std::sqrt(squares / (kSeeds - 1) / kSeeds));
  }
  return curve;
}

const Curve& one_rank_curve(const std::string& work) {
  static std::map<std::string, Curve> made;
  const auto [slot, fresh] = made.try_emplace(work);
  if (fresh) slot->second = mean_curve(work, 1, "");
  return slot->second;
}

std::vector<test::Layout> chosen() {
  std::vector<test::Layout> layouts;
  if (!test::full_matrix()) return layouts;
  for (const test::Layout& layout : test::layouts()) {
    for (const char* name : {"tp2_sp", "tp4_shared_heads", "dp4_micro2", "zero2", "zero3",
                             "pp2_interleaved", "pp4_zb_h1", "tp2_pp2_dp2_zb_v_zero2"})
      if (layout.name == name) layouts.push_back(layout);
  }
  return layouts;
}

class LayoutBf16 : public testing::TestWithParam<test::Layout> {};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(LayoutBf16);

TEST_P(LayoutBf16, MeanLossStaysWithinTwoStandardErrorsOfOneRanks) {
  const test::Layout& layout = GetParam();
  const Curve &one = one_rank_curve(layout.work),
              run = mean_curve(layout.work, layout.ranks, layout.keys);
  ASSERT_EQ(one.mean.size(), 20u);
  ASSERT_EQ(run.mean.size(), one.mean.size());
  double largest = 0, relative = 0;
  for (size_t step = 0; step < one.mean.size(); ++step) {
    const double difference = std::abs(run.mean[step] - one.mean[step]);
    EXPECT_LE(difference, 2 * one.error[step]) << "step " << step + 1;
    EXPECT_LE(difference, kRounding * one.mean[step]) << "step " << step + 1;
    largest = std::max(largest, difference / one.error[step]);
    relative = std::max(relative, difference / one.mean[step]);
  }
  std::cout << fmt::format(
      "{}: mean of {} seeds differs from one rank's by at most {:.3f} standard "
      "errors, {:.1e} of the loss\n",
      layout.name, kSeeds, largest, relative);
}

INSTANTIATE_TEST_SUITE_P(Layouts, LayoutBf16, testing::ValuesIn(chosen()),
                         [](const auto& info) { return info.param.name; });

} // namespace
} // namespace pentatron::trainer
