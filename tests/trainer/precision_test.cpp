// The name of a recipe holds, and layers that stay in dtype are some.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/ranks.h"
#include "tests/trainer/tiny_run.h"

namespace pentatron::trainer {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;

const std::string kSection = "mixed_precision.", kRecipeKey = kSection + "recipe=";

std::string refused(const std::vector<std::string>& keys) {
  return test::error_of([&] { test::tiny("unused", keys); });
}

TEST(Recipes, AreNotContradicted) {
  struct Conflict {
    std::string recipe;
    std::vector<std::string> keys;
    std::string sentence, remedy;
  };
  const std::vector<Conflict> conflicts = {
      {"fp16_mixed",
       {"dtype=bf16"},
       "dtype=bf16",
       "mixed_precision.recipe=bf16_mixed, or dtype=fp16"},
      {"bf16_mixed", {"dtype=fp32"}, "dtype=fp32", "dtype=bf16"},
      {"bf16_mixed",
       {kSection + "fp8=hybrid"},
       "mixed_precision.fp8=hybrid",
       "mixed_precision.recipe=bf16_with_fp8_current_scaling_mixed, or mixed_precision.fp8=none"},
      {"bf16_with_mxfp8_mixed",
       {kSection + "fp8=none"},
       "mixed_precision.fp8=none",
       "mixed_precision.recipe=bf16_mixed, or mixed_precision.fp8=e4m3"},
      {"fp16_with_fp8_delayed_scaling_mixed",
       {kSection + "fp8_recipe=tensorwise"},
       "mixed_precision.fp8_recipe=tensorwise",
       "mixed_precision.recipe=fp16_with_fp8_current_scaling_mixed, or "
       "mixed_precision.fp8_recipe=delayed"},
      {"bf16_with_nvfp4_mixed",
       {kSection + "fp4=none"},
       "mixed_precision.fp4=none",
       "mixed_precision.recipe=bf16_mixed, or mixed_precision.fp4=e2m1"}};
  for (const Conflict& c : conflicts) {
    std::vector<std::string> keys = c.keys;
    keys.push_back(kRecipeKey + c.recipe);
    EXPECT_THAT(refused(keys),
                AllOf(HasSubstr(c.sentence + " contradicts " + kRecipeKey + c.recipe + ", which"),
                      EndsWith("\n  try: " + c.remedy)))
        << c.recipe;
  }
}

TEST(Recipes, LeaveOtherKeysAsTheyAreGiven) {
  const Config config =
      test::tiny("unused", {kRecipeKey + "bf16_with_fp8_current_scaling_mixed", "dtype=bf16",
                            kSection + "fp8=e4m3", kSection + "first_last_layers_bf16=false",
                            "ddp.grad_reduce_in_fp32=false"});
  EXPECT_EQ(config.mixed_precision.fp8, Fp8Format::kE4m3);
  EXPECT_FALSE(config.mixed_precision.first_last_layers_bf16);
  EXPECT_FALSE(config.ddp.grad_reduce_in_fp32);
}

TEST(FirstAndLastLayers, AreSome) {
  std::vector<std::string> keys = {kSection + "fp8=e4m3", kSection + "first_last_layers_bf16=true",
                                   kSection + "num_layers_at_start_in_bf16=0"};
  EXPECT_NO_THROW(test::tiny("unused", keys));
  keys.push_back(kSection + "num_layers_at_end_in_bf16=0");
  EXPECT_THAT(refused(keys), AllOf(HasSubstr("first_last_layers_bf16=true has no effect with "),
                                   HasSubstr("try: mixed_precision.first_last_layers_bf16=false")));
}

} // namespace
} // namespace pentatron::trainer
