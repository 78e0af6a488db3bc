#include "pentatron/optim/lr_schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "pentatron/base/error.h"
#include "pentatron/config/config.h"

namespace pentatron::optim {
namespace {

using ::testing::HasSubstr;

// The curve under which the reference runs were trained (warm-up 4, cosine to step 20), as PyTorch
// applied it.
TEST(LrSchedule, ReproducesTheReferenceRuns) {
  const std::vector<double> expected = {0.0005,
                                        0.001,
                                        0.0015,
                                        0.002,
                                        0.0019827067523629075,
                                        0.001931491579260158,
                                        0.0018483226510722908,
                                        0.0017363961030678928,
                                        0.001600013209717642,
                                        0.001444415089128581,
                                        0.0012755812898145157,
                                        0.0011,
                                        0.0009244187101854846,
                                        0.0007555849108714192,
                                        0.0005999867902823583,
                                        0.0004636038969321073,
                                        0.0003516773489277092,
                                        0.00026850842073984193,
                                        0.00021729324763709263,
                                        0.0002};
  const SchedulerConfig scheduler{
      .lr_decay_style = LrDecayStyle::kCosine, .lr_decay_iters = 20, .lr_warmup_iters = 4};
  const LrCurve curve = lr_curve(scheduler, 2e-3, 2e-4, {.iters = 20});
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_DOUBLE_EQ(curve.at(static_cast<int64_t>(i) + 1), expected[i]) << i;
  }
}

struct StyleCase {
  const char* name;
  LrDecayStyle style;
  WsdDecayStyle wsd;
  std::vector<double> expected;
};
void PrintTo(const StyleCase& c, std::ostream* out) {
  *out << c.name;
}

class Style : public ::testing::TestWithParam<StyleCase> {};

// Computed by a separate Python transcription of the formulas: warm-up 10 from 1e-5, decay 100,
// 1e-3 to 1e-4, anneal 20.
TEST_P(Style, FollowsItsFormula) {
  const SchedulerConfig scheduler{.lr_decay_style = GetParam().style,
                                  .lr_decay_iters = 100,
                                  .lr_warmup_iters = 10,
                                  .lr_warmup_init = 1e-5,
                                  .lr_wsd_decay_style = GetParam().wsd,
                                  .lr_wsd_decay_iters = 20};
  const LrCurve curve = lr_curve(scheduler, 1e-3, 1e-4, {.iters = 200});
  const std::vector<int64_t> steps = {0, 1, 5, 10, 11, 50, 79, 80, 81, 90, 99, 100, 101};
  ASSERT_EQ(steps.size(), GetParam().expected.size());
  for (size_t i = 0; i < steps.size(); ++i) {
    EXPECT_NEAR(curve.at(steps[i]), GetParam().expected[i], 1e-17) << "step " << steps[i];
  }
}
INSTANTIATE_TEST_SUITE_P(
    All, Style,
    ::testing::Values(
        StyleCase{"constant",
                  LrDecayStyle::kConstant,
                  WsdDecayStyle::kLinear,
                  {1e-05, 0.000109, 0.000505, 0.001, 0.001, 0.001, 0.001, 0.001, 0.001, 0.001,
                   0.001, 0.001, 0.001}},
        StyleCase{"linear",
                  LrDecayStyle::kLinear,
                  WsdDecayStyle::kLinear,
                  {1e-05, 0.000109, 0.000505, 0.001, 0.00099, 0.0006, 0.00031, 0.0003, 0.00029,
                   0.0002, 0.00011, 0.0001, 0.0001}},
        StyleCase{"cosine",
                  LrDecayStyle::kCosine,
                  WsdDecayStyle::kLinear,
                  {1e-05, 0.000109, 0.000505, 0.001, 0.000999725872158593, 0.0006281416799501188,
                   0.00021558482853517255, 0.00020528000059645996, 0.00019539516087697516,
                   0.00012713832064634127, 0.00010027412784140692, 0.0001, 0.0001}},
        StyleCase{"inverse_square_root",
                  LrDecayStyle::kInverseSquareRoot,
                  WsdDecayStyle::kLinear,
                  {1e-05, 0.000109, 0.000505, 0.001, 0.0009534625892455924, 0.00044721359549995795,
                   0.00035578403348241004, 0.00035355339059327376, 0.00035136418446315325,
                   0.0003333333333333333, 0.00031782086308186413, 0.00031622776601683794, 0.0001}},
        StyleCase{"wsd_exponential",
                  LrDecayStyle::kWsd,
                  WsdDecayStyle::kExponential,
                  {1e-05, 0.000109, 0.000505, 0.001, 0.001, 0.001, 0.001, 0.001,
                   0.0009386853920647221, 0.0004727922061357856, 0.00013173843145723984, 0.0001,
                   0.0001}},
        StyleCase{"wsd_linear",
                  LrDecayStyle::kWsd,
                  WsdDecayStyle::kLinear,
                  {1e-05, 0.000109, 0.000505, 0.001, 0.001, 0.001, 0.001, 0.001, 0.000955, 0.00055,
                   0.000145, 0.0001, 0.0001}},
        StyleCase{"wsd_cosine",
                  LrDecayStyle::kWsd,
                  WsdDecayStyle::kCosine,
                  {1e-05, 0.000109, 0.000505, 0.001, 0.001, 0.001, 0.001, 0.001,
                   0.000994459753267812, 0.00055, 0.00010554024673218806, 0.0001, 0.0001}},
        StyleCase{"wsd_minus_sqrt",
                  LrDecayStyle::kWsd,
                  WsdDecayStyle::kMinusSqrt,
                  {1e-05, 0.000109, 0.000505, 0.001, 0.001, 0.001, 0.001, 0.001,
                   0.000798753882025019, 0.0003636038969321072, 0.0001227885089671933, 0.0001,
                   0.0001}}),
    [](const auto& info) { return info.param.name; });

TEST(LrSchedule, SamplesGiveTheSameShapeAsIterations) {
  const LrCurve by_iters =
      lr_curve({.lr_decay_iters = 90, .lr_warmup_iters = 7}, 1e-3, 1e-5, {.iters = 100});
  const LrCurve by_samples = lr_curve({.lr_decay_samples = 90 * 24, .lr_warmup_samples = 7 * 24},
                                      1e-3, 1e-5, {.samples = 100 * 24});
  for (int64_t n = 0; n <= 100; ++n) {
    EXPECT_NEAR(by_iters.at(n), by_samples.at(24 * n), 1e-17) << n;
  }
}

TEST(LrSchedule, WarmupFractionIsOfTheDecayLength) {
  const LrCurve curve =
      lr_curve({.lr_decay_iters = 50, .lr_warmup_fraction = 0.1}, 1.0, 0.0, {.iters = 100});
  EXPECT_EQ(curve.warmup, 5.0);
  EXPECT_DOUBLE_EQ(curve.at(1), 0.2);
}

TEST(LrSchedule, DecaysToTheEndOfTheRunByDefault) {
  EXPECT_EQ(lr_curve({}, 1.0, 0.1, {.iters = 33}).at(33), 0.1);
}

// Megatron's unit is the sample, which without a warmup shows: max / sqrt(samples).
TEST(LrSchedule, InverseSquareRootWithoutWarmupCountsSamples) {
  SchedulerConfig s;
  s.lr_decay_style = LrDecayStyle::kInverseSquareRoot;
  const LrCurve iters = lr_curve(s, 0.01, 0, {.iters = 5, .batch = 4});
  const LrCurve samples = lr_curve(s, 0.01, 0, {.samples = 20});
  for (int64_t n = 1; n <= 5; ++n) {
    EXPECT_DOUBLE_EQ(iters.at(n), 0.01 / std::sqrt(4.0 * static_cast<double>(n)));
    EXPECT_DOUBLE_EQ(iters.at(n), samples.at(4 * n));
  }
  s.lr_warmup_iters = 2;
  EXPECT_EQ(lr_curve(s, 0.01, 0, {.iters = 9, .batch = 4}).at(7),
            lr_curve(s, 0.01, 0, {.iters = 9, .batch = 1}).at(7));
}

TEST(WeightDecay, GrowsFromStartToEnd) {
  const SchedulerConfig constant;
  EXPECT_EQ(weight_decay_curve(constant, 0.1, {.iters = 10}).at(3), 0.1);
  SchedulerConfig s{.start_weight_decay = 0.1, .end_weight_decay = 0.5};
  s.weight_decay_incr_style = WeightDecayIncrStyle::kLinear;
  EXPECT_DOUBLE_EQ(weight_decay_curve(s, 9, {.iters = 10}).at(5), 0.3);
  s.weight_decay_incr_style = WeightDecayIncrStyle::kCosine;
  const WeightDecayCurve cosine = weight_decay_curve(s, 9, {.iters = 10});
  EXPECT_DOUBLE_EQ(cosine.at(0), 0.1);
  EXPECT_DOUBLE_EQ(cosine.at(5), 0.3);
  EXPECT_NEAR(cosine.at(2), 0.1 + 0.4 * 0.09549150281252627, 1e-15); // (1 - cos(pi / 5)) / 2
  EXPECT_EQ(cosine.at(11), 0.5);
}

std::string problems(const SchedulerConfig& s, TrainLength length, double max_lr = 1e-3,
                     double min_lr = 1e-4) {
  config::Violations violations;
  config::validate(s, violations);
  check_scheduler(s, max_lr, min_lr, length, violations);
  return violations.text();
}

TEST(SchedulerConfig, NamesWhatDoesNotFit) {
  EXPECT_EQ(problems({}, {.iters = 10}), "");
  EXPECT_THAT(problems({}, {}), HasSubstr("no length"));
  EXPECT_THAT(problems({}, {.iters = 1, .samples = 1}), HasSubstr("both set"));
  EXPECT_THAT(problems({.lr_warmup_iters = 10}, {.iters = 10}),
              HasSubstr("scheduler.lr_warmup_iters=10 is not shorter than the decay length of 10 "
                        "iters\n  try: scheduler.lr_warmup_iters=9"));
  EXPECT_THAT(problems({.lr_decay_style = LrDecayStyle::kWsd}, {.iters = 100}),
              HasSubstr("try: scheduler.lr_wsd_decay_iters=10"));
  EXPECT_THAT(
      problems(
          {.lr_decay_style = LrDecayStyle::kWsd, .lr_warmup_iters = 30, .lr_wsd_decay_iters = 80},
          {.iters = 100}),
      HasSubstr("try: scheduler.lr_wsd_decay_iters=70"));
  EXPECT_THAT(problems({.lr_warmup_samples = 3}, {.iters = 10}),
              HasSubstr("length of the run is given in iterations (train.train_iters); the key for "
                        "that is scheduler.lr_warmup_iters\n  try: scheduler.lr_warmup_samples=0"));
  EXPECT_THAT(problems({}, {.iters = 10}, 1e-4, 1e-3),
              HasSubstr("optimizer.min_lr=0.001 is above"));
  EXPECT_THAT(problems({.lr_warmup_init = 1}, {.iters = 10}), HasSubstr("lr_warmup_init=1"));
  EXPECT_THAT(problems({.lr_warmup_iters = 2, .lr_warmup_fraction = 0.1}, {.iters = 10}),
              HasSubstr("both set the length"));
  EXPECT_THAT(problems({.start_weight_decay = 0.1}, {.iters = 10}),
              HasSubstr("try: weight_decay_incr_style=linear"));
  EXPECT_THAT(problems({.start_weight_decay = 0.1,
                        .weight_decay_incr_style = WeightDecayIncrStyle::kLinear},
                       {.iters = 10}),
              HasSubstr("needs end_weight_decay"));
  EXPECT_THROW(lr_curve({.lr_warmup_iters = 10}, 1, 0, {.iters = 10}), ConfigError);
}

TEST(SchedulerConfig, KeepsMegatronsSpelling) {
  SchedulerConfig s;
  config::Violations violations;
  for (const char* text :
       {"lr_decay_style=WSD", "lr_wsd_decay_style=minus_sqrt", "weight_decay_incr_style=cosine"}) {
    config::apply_override(s, text, violations);
  }
  EXPECT_TRUE(violations.empty()) << violations.text();
  EXPECT_EQ(s.lr_decay_style, LrDecayStyle::kWsd);
  EXPECT_THAT(config::to_yaml(s), HasSubstr("lr_decay_style: WSD\n"));
}

} // namespace
} // namespace pentatron::optim
