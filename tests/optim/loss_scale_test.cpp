// The scale of every step is that of torch's GradScaler and megatron-core's DynamicGradScaler.
#include "pentatron/optim/loss_scale.h"

#include <cmath>
#include <filesystem>
#include <limits>

#include <gtest/gtest.h>

#include "pentatron/base/json.h"

namespace pentatron::optim {
namespace {

const std::filesystem::path kGolden =
    std::filesystem::path(PENTATRON_TEST_DATA) / "loss_scaling" / "loss_scaling.json";

LossScaleRule rule_of(const Json& one) {
  const Json& o = one.at("options");
  if (one.at("scaler") == "torch")
    return {.initial = o.at("init_scale").get<double>(),
            .growth_factor = o.at("growth_factor").get<double>(),
            .backoff_factor = o.at("backoff_factor").get<double>(),
            .min = 0,
            .window = o.at("growth_interval").get<int64_t>(),
            .hysteresis = 1};
  return {.initial = o.at("initial_scale").get<double>(),
          .growth_factor = o.at("growth_factor").get<double>(),
          .backoff_factor = o.at("backoff_factor").get<double>(),
          .min = o.at("min_scale").get<double>(),
          .window = o.at("growth_interval").get<int64_t>(),
          .hysteresis = o.at("hysteresis").get<int64_t>()};
}

TEST(LossScale, IsThatOfTorchAndMegatronInEveryStep) {
  const Json golden = read_json(kGolden);
  size_t cases = 0;
  for (const Json& one : golden.at("cases")) {
    SCOPED_TRACE(one.at("scaler").dump() + one.at("options").dump());
    LossScaler scaler(rule_of(one)), resumed(rule_of(one));
    for (size_t step = 0; step < golden.at("found_inf").size(); ++step) {
      ASSERT_EQ(scaler.scale(), one.at("scale_used")[step].get<double>()) << step;
      scaler.update(golden.at("found_inf")[step].get<bool>());
      ASSERT_EQ(scaler.scale(), one.at("scale_after")[step].get<double>()) << step;
      ASSERT_EQ(scaler.state().growth_tracker, one.at("growth_tracker_after")[step].get<int64_t>())
          << step;
      if (one.contains("hysteresis_tracker_after")) {
        ASSERT_EQ(scaler.state().hysteresis_tracker,
                  one.at("hysteresis_tracker_after")[step].get<int64_t>())
            << step;
      }
      // A new object with the old one's state goes on alike.
      LossScaler next(rule_of(one));
      next.set_state(scaler.state());
      scaler = next;
    }
    ++cases;
  }
  EXPECT_EQ(cases, 9u);
}

TEST(LossScale, AConstantNeverChanges) {
  LossScaler scaler({.dynamic = false, .initial = 3});
  for (int i = 0; i < 5000; ++i) scaler.update(i % 2 == 0);
  EXPECT_EQ(scaler.scale(), 3);
  EXPECT_FALSE(scaler.exhausted());
}

TEST(LossScale, DoesNotGrowToInfinity) {
  LossScaler scaler({.initial = 0x1p127, .window = 1});
  scaler.update(false);
  EXPECT_EQ(scaler.scale(), 0x1p127);
}

TEST(LossScale, IsExhaustedWhenNeitherPatienceNorScaleIsLeft) {
  LossScaler scaler({.initial = 4, .min = 2, .window = 1, .hysteresis = 2});
  for (const bool exhausted : {false, true}) {
    EXPECT_FALSE(scaler.exhausted());
    scaler.update(true);
    EXPECT_EQ(scaler.exhausted(), exhausted) << scaler.scale();
  }
  scaler.update(false); // grows, and the patience is full again
  EXPECT_FALSE(scaler.exhausted());
}

} // namespace
} // namespace pentatron::optim
