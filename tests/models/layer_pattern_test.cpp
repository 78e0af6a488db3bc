// Which layers have experts: numbers, lists, and what is neither.
#include "pentatron/models/layer_pattern.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "pentatron/base/error.h"
#include "pentatron/config/config.h"
#include "pentatron/models/model_config.h"

namespace pentatron::models {
namespace {

using ::testing::HasSubstr;
using Pattern = std::vector<bool>;

TEST(LayerPattern, OfANumberAreItsMultiples) {
  EXPECT_EQ(parse_layer_pattern("1", 3), (Pattern{true, true, true}));
  EXPECT_EQ(parse_layer_pattern("2", 5), (Pattern{true, false, true, false, true}));
  EXPECT_TRUE(is_in_layer_pattern("3", 1000000, 999999));
}

TEST(LayerPattern, OfAListAreItsOnes) {
  EXPECT_EQ(parse_layer_pattern("[0,1,1]", 3), (Pattern{false, true, true}));
  EXPECT_EQ(parse_layer_pattern("[0]*2+[1]*3", 5), (Pattern{false, false, true, true, true}));
  EXPECT_EQ(parse_layer_pattern("([0] * 1 + [1]) * 2 + [1, 0]", 6),
            (Pattern{false, true, false, true, true, false}));
  EXPECT_FALSE(is_in_layer_pattern("[0]*3+[1]*58", 61, 2));
  EXPECT_TRUE(is_in_layer_pattern("[0]*3+[1]*58", 61, 3));
}

TEST(LayerPattern, ElseIsAnError) {
  for (const char* text : {"",
                           "0",
                           "-1",
                           "2x",
                           "[",
                           "[]",
                           "[2]",
                           "[0,]",
                           "[0]+",
                           "[0]*",
                           "([0]",
                           "[0])",
                           "[0]*-1",
                           "[0][1]",
                           "__import__('os')",
                           "[1]*99999999999999999999",
                           "[1]*1000000000",
                           "((((((((((((([1])))))))))))))",
                           "[0]*1000000*1000000",
                           "[1]*3",
                           "[1]*5"})
    EXPECT_THROW(parse_layer_pattern(text, 4), ConfigError) << text;
}

TEST(LayerPattern, WhatIsWrongNamesTheKeyAndAValueThatWorks) {
  const auto said = [](const std::string& text, int64_t layers) {
    ModelConfig c{.num_layers = layers, .num_moe_experts = 4, .moe_layer_freq = text};
    EXPECT_NO_THROW(c.with_one_layer()) << text; // asked for before the rules are
    config::Violations violations;
    c.validate(violations, "model");
    return violations.text();
  };
  EXPECT_THAT(said("[1]", 4),
              HasSubstr("model.moe_layer_freq=\"[1]\" lists 1 layer, but num_layers=4"));
  EXPECT_THAT(said("[1]*9", 4), HasSubstr("lists more layers than num_layers=4"));
  EXPECT_THAT(said("x", 4), HasSubstr("model.moe_layer_freq=\"x\" is neither a number"));
  EXPECT_THAT(said("[1]", 4), HasSubstr("\n  try: model.moe_layer_freq=1"));
  EXPECT_NO_THROW((ModelConfig{.num_layers = -1, .num_moe_experts = 4}.with_one_layer()));
}

} // namespace
} // namespace pentatron::models
