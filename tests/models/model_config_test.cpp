// Rules between the keys of a model.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "pentatron/config/config.h"
#include "pentatron/models/model_config.h"

namespace pentatron::models {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

/// What is wrong with a BERT of these settings.
std::string problems(const std::vector<std::string>& settings) {
  ModelConfig config = ModelConfig::default_of(ModelType::kBert);
  config::Violations violations;
  for (const std::string& setting : settings) config::apply_override(config, setting, violations);
  config::validate(config, violations);
  return violations.text();
}

struct HeadKey {
  const char* name;
  const char* value;
  const char* same; ///< the default
  std::vector<std::string> heads;
};
const std::vector<HeadKey> kHeadKeys = {
    {"num_labels", "3", "2", {"classification"}},
    {"label_names", "[no, yes]", "[]", {"classification"}},
    {"classifier_dropout", "0.1", "null", {"classification", "regression"}},
    {"binary_head", "false", "true", {"masked_lm"}},
    {"untie_embeddings_and_output_weights", "true", "false", {"masked_lm"}},
    {"pooler", "false", "true", {"none"}}};

TEST(ModelHeads, AKeyIsOnlyForTheHeadsWithWhichItHasAnEffect) {
  for (const HeadKey& key : kHeadKeys) {
    for (const char* const head : {"masked_lm", "classification", "regression", "none"}) {
      const std::string setting = fmt::format("{}={}", key.name, key.value);
      SCOPED_TRACE(fmt::format("{} with {}", setting, head));
      const std::string chosen = fmt::format("head={}", head);
      EXPECT_EQ(problems({chosen, fmt::format("{}={}", key.name, key.same)}), "");
      const std::string found = problems({chosen, setting});
      if (std::ranges::find(key.heads, head) != key.heads.end()) {
        EXPECT_EQ(found, "");
      } else {
        EXPECT_THAT(found, AllOf(HasSubstr(fmt::format("{} has no effect without head={}",
                                                       key.name == std::string("label_names")
                                                           ? "label_names=[\"no\", \"yes\"]"
                                                           : setting,
                                                       key.heads.front())),
                                 HasSubstr(fmt::format("try: remove {}", key.name))));
      }
    }
  }
  EXPECT_THAT(problems({"num_labels=3"}), HasSubstr("try: head=classification"));
}

TEST(ModelHeads, KeysWithoutEffectAreNotSaved) {
  ModelConfig config = ModelConfig::default_of(ModelType::kBert);
  config.binary_head = false; // of the model that gives the weights
  config.head = ModelHead::kClassification;
  const std::string saved = config::to_yaml(config);
  EXPECT_THAT(saved, HasSubstr("num_labels: 2"));
  EXPECT_EQ(saved.find("binary_head"), std::string::npos);
}

TEST(RopeScalings, DynamicAllowsFactorTimesThePositions) {
  ModelConfig config;
  config.position_embedding_type = PositionEmbedding::kRope;
  config.max_position_embeddings = 24;
  config.rope_scaling = {.type = RopeScalingType::kDynamic, .factor = 2.5};
  EXPECT_EQ(config.longest_sequence(), 60);
  config.rope_scaling.factor = 1e300;
  EXPECT_GT(config.longest_sequence(), int64_t{1} << 32);
  config.kv_channels = 2;
  config::Violations violations;
  config::validate(config, violations);
  EXPECT_THAT(violations.text(),
              AllOf(HasSubstr("rope_scaling.type=dynamic needs more than one pair of dimensions"),
                    HasSubstr("try: rope_scaling.type=none")));
}

TEST(ModelTypes, ASavedT5HasNoRotaryPositions) {
  ModelConfig config = ModelConfig::default_of(ModelType::kT5);
  config.kv_channels = 7; // of which rotary positions would turn 8
  ModelConfig read;
  config::Violations violations;
  config::apply_yaml(read, config::to_yaml(config), "config.yaml", violations);
  config::validate(read, violations);
  EXPECT_EQ(violations.text(), "");
}

} // namespace
} // namespace pentatron::models
