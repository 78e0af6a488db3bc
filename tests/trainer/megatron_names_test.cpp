// Megatron-LM's names lead to keys that exist, and to values that these keys take.
#include <algorithm>
#include <cctype>
#include <set>
#include <sstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "pentatron/checkpoint/hf/families/family.h"
#include "pentatron/config/common_names.h"
#include "pentatron/config/config.h"
#include "pentatron/config/megatron_names.h"
#include "pentatron/models/presets.h"
#include "pentatron/trainer/config.h"

namespace pentatron::trainer {
namespace {

using ::testing::HasSubstr;

/// SECONDS: the value is for the user to choose.
bool is_placeholder(std::string_view value) {
  return !value.empty() && std::ranges::all_of(value, [](unsigned char c) { return isupper(c); });
}

TEST(MegatronNames, LeadToSettingsOfAConfiguration) {
  std::set<std::string> keys;
  for (const config::FieldInfo& field : config::list_fields<Config>()) keys.insert(field.path);
  std::string before;
  for (const auto& [flag, setting] : config::megatron_names()) {
    EXPECT_LT(before, flag) << "in order, each once";
    before = flag;
    for (std::string_view left = setting; !left.empty();) {
      constexpr std::string_view kAnd = " and ";
      const std::string one(left.substr(0, left.find(kAnd)));
      left.remove_prefix(std::min(one.size() + kAnd.size(), left.size()));
      const size_t equals = one.find('=');
      EXPECT_TRUE(keys.contains(one.substr(0, equals))) << flag << ": " << one;
      if (equals == std::string::npos || is_placeholder(one.substr(equals + 1))) continue;
      Config config;
      config::Violations violations;
      config::apply_override(config, one, violations);
      EXPECT_TRUE(violations.empty()) << flag << ": " << violations.text();
    }
  }
}

TEST(MegatronNames, AreKnownHoweverTheyAreWritten) {
  for (const char* typed : {"--num-experts", "--num-experts=8", "num_experts", "model.num_experts"})
    EXPECT_EQ(config::setting_of_megatron(typed), "model.num_moe_experts") << typed;
  EXPECT_EQ(config::setting_of_megatron("--moe-router-topk"), "model.moe_router_topk");
  EXPECT_EQ(config::setting_of_megatron("--bf16"), "dtype=bf16");
  EXPECT_EQ(config::setting_of_megatron("--rl-profile"), "");
}

TEST(CommonNames, LeadToSettingsAndAreNoKeys) {
  std::set<std::string> keys;
  for (const config::FieldInfo& field : config::list_fields<Config>()) keys.insert(field.path);
  for (const auto& [section, last, setting] : config::common_names()) {
    const std::string name =
        std::string(section) + (section.empty() ? "" : ".") + std::string(last);
    EXPECT_FALSE(keys.contains(name)) << name;
    std::string_view left = setting;
    while (!left.starts_with("--") && !left.empty()) {
      const std::string one(left.substr(0, left.find(" and ")));
      left.remove_prefix(std::min(left.size(), one.size() + std::string_view(" and ").size()));
      EXPECT_TRUE(keys.contains(one.substr(0, one.find('=')))) << one;
    }
    Config config;
    config::Violations violations;
    config::apply_override(config, name + "=1", violations);
    EXPECT_THAT(violations.text(), HasSubstr("try: " + std::string(setting))) << name;
  }
}

TEST(CommonNames, OfKindsOfModelsLeadToTheirTypes) {
  const auto said = [](const std::string& assignment) {
    Config config;
    config::Violations violations;
    config::apply_override(config, assignment, violations);
    return violations.text();
  };
  const std::string roberta = said("model.type=roberta");
  EXPECT_THAT(roberta, testing::AllOf(HasSubstr("model.type=roberta is not one of gpt, bert, t5"),
                                      HasSubstr("--hf DIR")));
  // What is told makes the model of the preset, but for its sizes.
  Config told;
  config::Violations violations;
  std::istringstream words(roberta.substr(roberta.find("try: ") + 5));
  for (std::string word; words >> word && word.find('=') != std::string::npos;) {
    if (word.ends_with(',')) word.pop_back();
    config::apply_override(told, word, violations);
  }
  EXPECT_TRUE(violations.empty()) << violations.text();
  const models::ModelConfig& preset = models::preset("roberta_base");
  EXPECT_EQ(told.model.type, preset.type);
  EXPECT_EQ(told.model.num_tokentypes, preset.num_tokentypes);
  EXPECT_EQ(told.model.position_offset, preset.position_offset);
  EXPECT_EQ(told.model.binary_head, preset.binary_head);
  EXPECT_THAT(said("model.type=llama"), HasSubstr("try: --hf DIR"));
  for (const checkpoint::Family& family : checkpoint::families()) {
    const std::string type(family.model_type);
    if (type == "bert" || type == "t5") continue;
    EXPECT_THAT(said("model.type=" + type), HasSubstr("--hf DIR for a Hugging Face model")) << type;
  }
}

TEST(CommonNames, OfOneSectionComeBeforeThoseOfAny) {
  EXPECT_EQ(config::setting_of_common_name("checkpoint" + std::string(".path")), "checkpoint.save");
  EXPECT_EQ(config::setting_of_common_name("model" + std::string(".path")), "checkpoint.load");
  EXPECT_EQ(config::setting_of_common_name("save_steps=10"), "checkpoint.save_interval");
  EXPECT_EQ(config::setting_of_common_name("dp").substr(0, 7), "--ranks");
  EXPECT_EQ(config::setting_of_common_name("dataset.path"), "");
}

TEST(MegatronNames, AreWhatAnUnknownKeyIsAnsweredWith) {
  const auto said = [](const std::string& assignment) {
    Config config;
    config::Violations violations;
    config::apply_override(config, assignment, violations);
    return violations.text();
  };
  EXPECT_THAT(said("model.swiglu=true"), HasSubstr("try: model.activation_func=swiglu"));
  EXPECT_THAT(said("model.add_bias_linear=true"), HasSubstr("try: model.add_qkv_bias=true and "));
  EXPECT_THAT(said("train.use_distributed_optimizer=true"), HasSubstr("try: ddp.zero_stage=1"));
  EXPECT_THAT(said("moe_router_topk=2"), HasSubstr("try: model.moe_router_topk"));
}

} // namespace
} // namespace pentatron::trainer
