#include "pentatron/optim/batch_size_schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "pentatron/base/error.h"

namespace pentatron::optim {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Step = BatchSizeSchedule::Step;

TEST(BatchSizeSchedule, ReadsTokenThresholds) {
  const auto s = BatchSizeSchedule::by_tokens("0:768 250B:1536", 4096);
  EXPECT_THAT(s.steps(), ElementsAre(Step{0, 768}, Step{250'000'000'000 / 4096, 1536}));
  EXPECT_EQ(s.at_samples(0), 768);
  EXPECT_EQ(s.at_samples(250'000'000'000 / 4096), 1536);
  EXPECT_EQ(s.at_samples(250'000'000'000 / 4096 - 1), 768);
  EXPECT_EQ(s.at_samples(9'000'000'000'000 / 4096), 1536);
}

TEST(BatchSizeSchedule, TakesEverySuffixAndCommas) {
  const auto s = BatchSizeSchedule::by_tokens("0:1, 500:2,2K:3 1.5M:4  1b:5,1T:6", 10);
  EXPECT_THAT(s.steps(), ElementsAre(Step{0, 1}, Step{50, 2}, Step{200, 3}, Step{150'000, 4},
                                     Step{100'000'000, 5}, Step{100'000'000'000, 6}));
}

TEST(BatchSizeSchedule, RefusesWhatItCannotRead) {
  for (const char* text : {"", " ", "768", "0:0", "0:-1", "0:768 250X:1", "0:768 :1", "5:768",
                           "0:8 1K:9 1K:10", "0:8 2K:9 1K:10", "0:8 1.0001K:9", "0:8 99999999T:9",
                           "0:1x", "0:8 1e3:9", "0:8 -5:9", "0:8 3:9"}) {
    EXPECT_THROW(BatchSizeSchedule::by_tokens(text, 16), ConfigError) << text;
  }
}

// The formula of Megatron-LM: start + increment * int(consumed / (samples / increments)), capped.
TEST(BatchSizeSchedule, RampUpFollowsItsFormula) {
  const int64_t start = 16, increment = 8, samples = 1000, size = 64;
  const auto s = BatchSizeSchedule::ramp_up(start, increment, samples, size);
  const int64_t count = (size - start) / increment;
  for (int64_t consumed = 0; consumed < 1500; ++consumed) {
    const int64_t expected =
        consumed > samples ? size : start + increment * (consumed * count / samples);
    ASSERT_EQ(s.at_samples(consumed), expected) << consumed;
  }
}

TEST(BatchSizeSchedule, RampUpMayBeSteeperThanASampleAStep) {
  const auto s = BatchSizeSchedule::ramp_up(1, 1, 2, 9);
  EXPECT_EQ(s.at_samples(0), 1);
  EXPECT_EQ(s.at_samples(1), 5);
  EXPECT_EQ(s.at_samples(2), 9);
}

TEST(BatchSizeSchedule, RampUpHasToArrive) {
  EXPECT_THROW(BatchSizeSchedule::ramp_up(16, 7, 1000, 64), ConfigError);
  EXPECT_THROW(BatchSizeSchedule::ramp_up(64, 8, 1000, 64), ConfigError);
  EXPECT_THROW(BatchSizeSchedule::ramp_up(0, 8, 1000, 64), ConfigError);
  EXPECT_THROW(BatchSizeSchedule::constant(0), ConfigError);
}

// Oracle: run the loop.
TEST(BatchSizeSchedule, CountsIterationsAndSamplesAsTheLoopDoes) {
  for (const auto& s : {BatchSizeSchedule::constant(3), BatchSizeSchedule::ramp_up(2, 3, 50, 17),
                        BatchSizeSchedule::by_tokens("0:5 100:7 105:100 900:1", 1)}) {
    int64_t consumed = 0;
    for (int64_t i = 0; i < 400; ++i) {
      ASSERT_EQ(s.samples_after(i), consumed);
      ASSERT_EQ(s.iterations_for(consumed), i);
      ASSERT_EQ(s.iterations_for(consumed + 1), i + 1);
      consumed += s.at_samples(consumed);
    }
  }
}

TEST(BatchSizeSchedule, ABatchOfManyTimesTheSamplesIsNotAdvised) {
  for (const auto& [micro, dp, batch, remedy] : {std::tuple{4, 1, 7, "train.global_batch_size=8"},
                                                 {1000000, 1, 2, "train.micro_batch_size=2"},
                                                 {1000000, 2, 8, "train.micro_batch_size=4"}}) {
    config::Violations violations;
    BatchSizeSchedule::constant(batch).check(micro, dp, violations, "train.global_batch_size");
    ASSERT_EQ(violations.list().size(), 1u);
    EXPECT_EQ(violations.list()[0].suggestion, remedy);
  }
}

TEST(BatchSizeSchedule, IsCheckedAsAWhole) {
  const auto s = BatchSizeSchedule::by_tokens("0:768 1K:100 2K:1536 3K:102", 1);
  config::Violations violations;
  s.check(8, 4, violations, "train.step_batch_size_schedule");
  ASSERT_EQ(violations.list().size(), 2u);
  EXPECT_THAT(violations.text(),
              HasSubstr("the batch size 100 is not a multiple of train.micro_batch_size=8 x "
                        "data-parallel size 4\n    try: train.step_batch_size_schedule=\"\""));
  config::Violations none;
  s.check(2, 1, none, "x");
  EXPECT_TRUE(none.empty());
}

} // namespace
} // namespace pentatron::optim
