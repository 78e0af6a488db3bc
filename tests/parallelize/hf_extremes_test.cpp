// Exports of models whose keys are at the ends of what they may be: written, or refused by a
// sentence that names the reason.
#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "pentatron/base/error.h"
#include "pentatron/checkpoint/gguf/key_names.h"
#include "pentatron/checkpoint/hf/hf_export.h"
#include "pentatron/checkpoint/hf/weight_map.h"
#include "pentatron/config/config.h"
#include "pentatron/config/paths.h"
#include "pentatron/config/value.h"
#include "tests/support/ranks.h"

namespace pentatron::checkpoint {
namespace {

using models::ModelConfig;
using models::ModelType;
using test::error_of;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

/// As YAML: the ends of a range, both values of a switch, all of an enum.
std::vector<std::string> extremes(const config::Entry& entry) {
  const config::TypeInfo& type =
      entry.type->element != nullptr ? *entry.type->element : *entry.type;
  std::vector<std::string> values;
  const auto add = [&](const config::Value& value) {
    const std::string text = config::format_value(type, value);
    values.push_back(entry.type->kind == config::Kind::kList ? "[" + text + "]" : text);
  };
  const config::FieldTraits& traits = entry.traits;
  switch (type.kind) {
  case config::Kind::kBool:
    for (const bool value : {false, true}) add({value});
    break;
  case config::Kind::kEnum:
    for (const config::NamedValue& named : type.names) add({named.value});
    break;
  case config::Kind::kInt:
    add({static_cast<int64_t>(std::max(traits.min + (traits.min_excluded ? 1 : 0), -1e18))});
    add({static_cast<int64_t>(std::min(traits.max, 1e18))});
    break;
  case config::Kind::kDouble:
    add({std::nextafter(std::max(traits.min, -1e300), traits.min_excluded ? 1e300 : traits.min)});
    add({std::min(traits.max, 1e300)});
    break;
  default:
    add({std::string("a\"\nb")});
  }
  if (entry.type->kind == config::Kind::kOptional) values.emplace_back("null");
  return values;
}

/// A model of two layers whose weights can be listed, unless the key makes it larger.
ModelConfig small(ModelType type) {
  ModelConfig c = ModelConfig::default_of(type);
  c.num_layers = 2;
  c.hidden_size = 8;
  c.num_attention_heads = 2;
  c.vocab_size = 32;
  return c;
}

/// "model.a=1 and model.b=2", applied.
ModelConfig followed(ModelConfig c, std::string_view settings) {
  constexpr std::string_view kAnd = " and ", kSection = "model.";
  config::Violations violations;
  while (!settings.empty()) {
    const size_t end = std::min(settings.find(kAnd), settings.size());
    EXPECT_TRUE(settings.starts_with(kSection)) << settings;
    config::apply_override(c, settings.substr(kSection.size(), end - kSection.size()), violations);
    settings.remove_prefix(std::min(end + kAnd.size(), settings.size()));
  }
  EXPECT_TRUE(violations.empty()) << violations.text();
  return c;
}

class HfExtremes : public testing::TestWithParam<ModelType> {};

TEST_P(HfExtremes, EveryKeyIsExportedOrRefusedWithAReason) {
  int exported = 0, refused = 0, helped = 0;
  const ModelConfig plain = small(GetParam());
  const auto check = [&](const std::string& path, const config::Entry& entry, const void*) {
    if (path == "type" || path == "preset") return;
    for (const std::string& value : extremes(entry)) {
      SCOPED_TRACE(path + "=" + value);
      ModelConfig c = plain;
      config::Violations violations;
      config::apply_override(c, path + "=" + value, violations);
      config::validate(c, violations);
      if (!violations.empty()) continue;
      try {
        const HfExport made = make_hf_config(c);
        if (c.num_layers <= 2 && c.decoder_layers() <= 2) {
          EXPECT_FALSE(weight_map({made.family, c}).empty());
        }
        ++exported;
      } catch (const ConfigError& error) {
        EXPECT_THAT(error.what(), HasSubstr("no Hugging Face family"));
        ++refused;
        if (!parts_of(error.what()).remedy.empty()) {
          EXPECT_NO_THROW(make_hf_config(followed(c, parts_of(error.what()).remedy)));
          ++helped;
        }
      } catch (const std::exception& error) {
        ADD_FAILURE() << error.what();
      }
    }
  };
  config::walk(config::schema_of<ModelConfig>(), &plain, check);
  EXPECT_GT(exported, 20);
  EXPECT_GT(refused, 5);
  EXPECT_GT(helped, 5);
}
INSTANTIATE_TEST_SUITE_P(Types, HfExtremes,
                         testing::Values(ModelType::kGpt, ModelType::kBert, ModelType::kT5),
                         [](const auto& info) {
                           return std::string(config::to_string(info.param));
                         });

TEST(HfExport, TellsHowToHaveExpertsThatAFamilyHas) {
  ModelConfig c = small(ModelType::kGpt);
  c.num_moe_experts = 4;
  c.moe_router_enable_expert_bias = true;
  EXPECT_THAT(error_of([&] { make_hf_config(c); }),
              AllOf(HasSubstr("model.moe_router_enable_expert_bias=true"),
                    HasSubstr("\n  try: model.moe_router_enable_expert_bias=false")));
}

TEST(HfExport, WeightsThatAreDividedByTheirSumAreThoseOfTheSelected) {
  ModelConfig c = small(ModelType::kGpt);
  c.num_moe_experts = 4;
  c.ffn_hidden_size = c.moe_ffn_hidden_size = 16;
  c.moe_router_pre_softmax = c.add_qkv_bias = false;
  ModelConfig divided = c;
  divided.moe_router_pre_softmax = true;
  divided.moe_router_norm_topk_prob = true;
  EXPECT_EQ(make_hf_config(divided).family, "mixtral");
  EXPECT_TRUE(same_model(c, divided));
  for (ModelConfig* model : {&c, &divided}) model->qk_layernorm = true;
  EXPECT_EQ(make_hf_config(divided).family, "qwen3_moe");
  EXPECT_EQ(make_hf_config(divided).config["norm_topk_prob"], true);
  divided.moe_router_norm_topk_prob = false;
  EXPECT_FALSE(same_model(c, divided));
  EXPECT_EQ(make_hf_config(divided).config["norm_topk_prob"], false);
}

TEST(KeyNames, AreKeysOfAModel) {
  const ModelConfig c;
  for (const auto& [theirs, ours] : key_names())
    for (std::string_view left = ours; !left.empty();) {
      constexpr std::string_view kAnd = " and ", kSection = "model.";
      const size_t end = std::min(left.find(kAnd), left.size());
      EXPECT_NO_THROW(config::get(c, left.substr(0, end).substr(kSection.size()))) << theirs;
      left.remove_prefix(std::min(end + kAnd.size(), left.size()));
    }
  EXPECT_EQ(with_key_name("sliding_window=4 is wrong"),
            "sliding_window=4 is wrong (model.window_size)");
  EXPECT_EQ(with_key_name("vocab_size=0 is wrong"), "vocab_size=0 is wrong");
}

TEST(HfExport, SaysWhatNoFileCanHold) {
  ModelConfig c = small(ModelType::kBert);
  c.num_tokentypes = 0;
  EXPECT_THAT(error_of([&] { make_hf_config(c); }), HasSubstr("model.num_tokentypes=0"));
  for (const ModelType type : {ModelType::kGpt, ModelType::kBert, ModelType::kT5}) {
    c = small(type);
    c.num_layers = 1 << 20; // more than any reader takes
    EXPECT_THAT(error_of([&] { make_hf_config(c); }),
                AllOf(HasSubstr(fmt::format("of type {}", config::to_string(type))),
                      HasSubstr("=1048576 is not in 0 to 10000"), Not(HasSubstr("internal"))));
  }
}

} // namespace
} // namespace pentatron::checkpoint
