// The name of a recipe holds, and layers that stay in dtype are some.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "pentatron/trainer/precision.h"
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

/// What a GPU is told: the setting, what it needs, what the machine has, and what works there.
TEST(GpuCapabilities, AreNamedByErrors) {
  struct Case {
    std::vector<std::string> keys;
    int capability;
    std::string sentence, remedy; ///< no sentence: it runs
  };
  const std::string fp8 = kSection + "fp8=e4m3", blocks = kSection + "fp8_recipe=blockwise",
                    mx = kSection + "fp8_recipe=mxfp8", fp4 = kSection + "fp4=e2m1",
                    later = " needs a GPU of compute capability 10.0 or later, such as a B200 or "
                            "B300, and GPU X has ";
  const std::vector<Case> cases = {
      {{fp8}, 89, "", ""},
      {{fp8}, 120, "", ""},
      {{fp8},
       80,
       fp8 + " needs a GPU of compute capability 8.9 or later, such as an L40S or H100, and GPU X "
             "has 8.0",
       kSection + "fp8=none"},
      {{fp8, blocks}, 90, "", ""},
      {{fp8, blocks},
       100,
       blocks + " needs a GPU of compute capability 9.x, such as an H100 or H200, and GPU X has "
                "10.0",
       kSection + "fp8_recipe=tensorwise"},
      {{fp8, blocks}, 89, blocks + " needs a GPU of compute capability 9.x", "tensorwise"},
      {{fp8, blocks}, 86, fp8 + " needs a GPU of compute capability 8.9", kSection + "fp8=none"},
      {{fp8, mx}, 100, "", ""},
      {{fp8, mx}, 103, "", ""},
      {{fp8, mx}, 120, "", ""},
      {{fp8, mx}, 90, mx + later + "9.0", kSection + "fp8_recipe=tensorwise"},
      {{fp8, mx}, 80, mx + later + "8.0", kSection + "fp8=none"},
      {{fp4}, 100, "", ""},
      {{fp4}, 90, fp4 + later + "9.0", kSection + "fp4=none " + kSection + "fp8=hybrid"},
      {{fp4, mx},
       90,
       fp4 + later + "9.0",
       kSection + "fp4=none " + kSection + "fp8=hybrid " + kSection + "fp8_recipe=tensorwise"},
      {{fp4}, 75, fp4 + later + "7.5", kSection + "fp4=none"},
      {{kRecipeKey + "bf16_with_nvfp4_mixed"},
       90,
       fp4 + later + "9.0",
       kRecipeKey + "bf16_with_fp8_current_scaling_mixed"},
      {{kRecipeKey + "fp16_with_mxfp8_mixed"},
       89,
       mx + later + "8.9",
       kRecipeKey + "fp16_with_fp8_current_scaling_mixed"},
      {{kRecipeKey + "bf16_with_mxfp8_mixed"}, 80, mx + later + "8.0", kRecipeKey + "bf16_mixed"},
      {{kRecipeKey + "fp16_with_fp8_subchannel_scaling_mixed"},
       80,
       fp8 + " needs a GPU of compute capability 8.9",
       kRecipeKey + "fp16_mixed"}};
  for (const Case& c : cases) {
    const Config config = test::tiny("unused", c.keys);
    const auto check = [&] { check_gpu_capability(config, c.capability, "GPU X"); };
    if (c.sentence.empty()) {
      EXPECT_NO_THROW(check()) << c.keys.back() << ' ' << c.capability;
      continue;
    }
    const std::string error = test::error_of(check);
    EXPECT_THAT(error, AllOf(HasSubstr(c.sentence), HasSubstr("\n  try: "), EndsWith(c.remedy)))
        << c.keys.back() << ' ' << c.capability;
    // What is suggested is accepted, there too.
    std::vector<std::string> keys = c.keys;
    std::erase_if(keys, [](const std::string& key) { return key.starts_with(kRecipeKey); });
    const std::string remedy = error.substr(error.find("try: ") + 5);
    for (size_t at = 0; at < remedy.size();) {
      const size_t end = std::min(remedy.find(' ', at), remedy.size());
      keys.push_back(remedy.substr(at, end - at));
      at = end + 1;
    }
    const Config better = test::tiny("unused", keys);
    if (!better.mixed_precision.low_precision()) continue;
    EXPECT_NO_THROW(check_gpu_capability(better, c.capability, "GPU X")) << remedy;
  }
}

TEST(GpuPrecision, OfDoublesAndGatheredCodesIsOfCpus) {
  for (const std::string& key : {kSection + "fp4=e2m1", kSection + "fp8=e4m3"}) {
    EXPECT_NO_THROW(test::tiny("unused", {key, "device=cuda", "dtype=fp32"}));
    EXPECT_THAT(refused({key, "device=cuda", "dtype=fp64"}),
                AllOf(HasSubstr("dtype=fp64 with " + key + " is computed on CPUs only"),
                      EndsWith("\n  try: dtype=fp32")));
  }
  EXPECT_THAT(refused({kSection + "fp8=e4m3", "device=cuda", "dtype=fp32", "ddp.zero_stage=1",
                       "ddp.fp8_param_gather=true"}),
              AllOf(HasSubstr("ddp.fp8_param_gather=true works on CPUs only"),
                    EndsWith("\n  try: ddp.fp8_param_gather=false")));
}

} // namespace
} // namespace pentatron::trainer
