// Delayed scales: which amax makes the scale of a step.
#include "pentatron/nn/amax_history.h"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

namespace pentatron::nn {
namespace {

void step(AmaxHistory& history, float input, float gradient = 0) {
  history.begin_step();
  history.see(Operand::kInput, input);
  history.see(Operand::kGradient, gradient);
  history.end_step(history.seen());
}

TEST(AmaxHistory, TakesTheLargestOfItsLengthOrTheNewest) {
  AmaxHistory largest({.length = 3}), newest({.length = 3, .most_recent = true});
  EXPECT_EQ(largest.amax(Operand::kInput), 0) << "the scale is 1 at first";
  const float given[] = {2, 8, 1, 4, 3}, most[] = {2, 8, 8, 8, 4};
  for (int i = 0; i < 5; ++i) {
    step(largest, given[i]);
    step(newest, given[i]);
    EXPECT_EQ(largest.amax(Operand::kInput), most[i]) << i;
    EXPECT_EQ(newest.amax(Operand::kInput), given[i]) << i;
    EXPECT_EQ(largest.amax(Operand::kWeight), 0);
  }
  EXPECT_EQ(largest.entries()[0].history, (std::vector<float>{3, 4, 1}));
}

TEST(AmaxHistory, KeepsItsScaleWhereThereIsNoAmax) {
  AmaxHistory history({.length = 1, .most_recent = true, .margin = 2});
  step(history, 5);
  EXPECT_EQ(history.amax(Operand::kInput), 20) << "5 times 2^margin";
  step(history, 0);
  EXPECT_EQ(history.amax(Operand::kInput), 20);
  step(history, std::numeric_limits<float>::infinity());
  EXPECT_EQ(history.amax(Operand::kInput), 20);
  step(history, 7);
  EXPECT_EQ(history.amax(Operand::kInput), 28);
}

TEST(AmaxHistory, LooksAtTensorsOfStepsOnlyAndAtAWeightOnce) {
  AmaxHistory history({});
  EXPECT_FALSE(history.wants(Operand::kInput)) << "an evaluation";
  history.begin_step();
  EXPECT_TRUE(history.wants(Operand::kWeight));
  history.see(Operand::kWeight, 3);
  EXPECT_FALSE(history.wants(Operand::kWeight));
  EXPECT_TRUE(history.wants(Operand::kInput));
  history.see(Operand::kInput, 1);
  EXPECT_TRUE(history.wants(Operand::kInput));
  history.end_step(history.seen());
  EXPECT_FALSE(history.wants(Operand::kInput));
}

TEST(AmaxHistory, GoesOnFromItsEntries) {
  AmaxHistory one({.length = 2}), other({.length = 2});
  for (const float amax : {4.0f, 9.0f, 1.0f}) step(one, amax, amax / 3);
  other.set_entries(one.entries());
  for (AmaxHistory* history : {&one, &other}) step(*history, 2, 1);
  EXPECT_EQ(one.entries(), other.entries());
  AmaxHistory shorter({.length = 1});
  shorter.set_entries(one.entries());
  EXPECT_EQ(shorter.entries()[0].history.size(), 1u);
}

} // namespace
} // namespace pentatron::nn
