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

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;

/// SECONDS: the value is for the user to choose.
bool is_placeholder(std::string_view value) {
  return !value.empty() && std::ranges::all_of(value, [](unsigned char c) { return isupper(c); });
}

std::string said_of(const std::string& assignment) {
  Config config;
  config::Violations violations;
  config::apply_override(config, assignment, violations);
  return violations.text();
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
  const std::string roberta = said_of("model.type=roberta");
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
  EXPECT_THAT(said_of("model.type=llama"), HasSubstr("try: --hf DIR"));
  for (const checkpoint::Family& family : checkpoint::families()) {
    const std::string type(family.model_type);
    if (type == "bert" || type == "t5") continue;
    EXPECT_THAT(said_of("model.type=" + type), HasSubstr("--hf DIR for a Hugging Face model"))
        << type;
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
  EXPECT_THAT(said_of("model.swiglu=true"), HasSubstr("try: model.activation_func=swiglu"));
  EXPECT_THAT(said_of("model.add_bias_linear=true"),
              HasSubstr("try: model.add_qkv_bias=true and "));
  EXPECT_THAT(said_of("train.use_distributed_optimizer=true"), HasSubstr("try: ddp.zero_stage=1"));
  EXPECT_THAT(said_of("moe_router_topk=2"), HasSubstr("try: model.moe_router_topk=2"));
}

TEST(MegatronNames, LeadToTheValueThatWasGiven) {
  for (const auto& [assignment, setting] :
       {std::pair{"train.recompute_granularity=full", "train.recompute=full"},
        {"model.recompute_granularity=selective", "train.recompute=selective"},
        {"recompute_granularity=most", "train.recompute"}, // no value of it
        {"mixed_precision.fp8_format=e4m3", "mixed_precision.fp8=e4m3"},
        {"fp8_format=hybrid", "mixed_precision.fp8=hybrid"},
        {"fp4_format=e2m1", "mixed_precision.fp4=e2m1"},
        {"optimizer_cpu_offload=true", "offload.optimizer=true"},
        {"optimizer.optimizer_cpu_offload=false", "offload.optimizer=false"},
        {"no_load_optim=false", "checkpoint.load_optimizer=true"},
        {"optimizer_offload_fraction=0.5", "offload.optimizer_fraction=0.5"},
        {"cpu_offloading=true", "offload.activations=true"},
        {"cpu_offloading_num_layers=4", "offload.num_layers=4"},
        {"fine_grained_activation_offloading=true", "offload.activations=true"},
        {"optimizer.use_precision_aware_optimizer=true",
         "optimizer.exp_avg_dtype=TYPE and optimizer.exp_avg_sq_dtype=TYPE"},
        {"optimizer.decoupled_lr=1e-3",
         "optimizer.param_groups=[\"embedding.word.* lr_mult=FACTOR\"]"},
        // What is off here, too.
        {"fp16=false", "remove fp16"},
        {"ddp.use_distributed_optimizer=false", "remove ddp.use_distributed_optimizer"},
        {"use_precision_aware_optimizer=false", "remove use_precision_aware_optimizer"},
        {"train_data_path=a b", "dataset.train_data_path"}})
    EXPECT_THAT(said_of(assignment), EndsWith(std::string("try: ") + setting)) << assignment;
}

TEST(MegatronNames, OfWhatIsFixedAreToldWithTheReason) {
  EXPECT_THAT(said_of("decoupled_lr=1"), HasSubstr("is not a key: FACTOR is its ratio to "));
  for (const auto& [name, reason] :
       {std::pair{"optimizer.main_grads_dtype", "gradients accumulate in fp32"},
        {"main_params_dtype", "master weights are in fp32"},
        {"decoupled_min_lr", "apply to optimizer.min_lr"},
        {"model.offload_modules", "of all parts of a layer"}}) {
    EXPECT_EQ(config::setting_of_megatron(name), "");
    EXPECT_THAT(said_of(name + std::string("=fp16")),
                AllOf(HasSubstr(name + std::string(" is not a key: ")), HasSubstr(reason),
                      EndsWith(std::string("try: remove ") + name)));
  }
}

TEST(Values, ThatAreUnknownAreAnsweredWithOneThatIsKnown) {
  for (const auto& [typed, setting] :
       {std::pair{"optimizer.optimizer=foo", "optimizer.optimizer=adam"},
        {"optimizer.optimizer=adamw", "optimizer.optimizer=adam"},
        {"optimizer.muon_scale_mode=foo", "optimizer.muon_scale_mode=match_rms_adamw"},
        {"optimizer.muon_scale_mode=shape_scaling", "optimizer.muon_scale_mode=original"},
        {"optimizer.muon_tp_mode=duplicated", "optimizer.muon_tp_mode=exact"},
        {"optimizer.exp_avg_dtype=foo", "optimizer.exp_avg_dtype=fp32"},
        {"optimizer.exp_avg_dtype=bfloat16", "optimizer.exp_avg_dtype=bf16"},
        {"mixed_precision.fp8=foo", "mixed_precision.fp8=none"},
        {"mixed_precision.fp8=true", "mixed_precision.fp8=hybrid"},
        {"mixed_precision.fp8_recipe=foo", "mixed_precision.fp8_recipe=tensorwise"},
        {"mixed_precision.fp8_recipe=subchannel", "mixed_precision.fp8_recipe=blockwise"},
        {"mixed_precision.fp4=nvfp4", "mixed_precision.fp4=e2m1"},
        {"mixed_precision.recipe=foo", "mixed_precision.recipe=none"},
        {"mixed_precision.recipe=bf16-mixed", "mixed_precision.recipe=bf16_mixed"},
        {"mixed_precision.recipe=16-mixed", "mixed_precision.recipe=fp16_mixed"},
        {"mixed_precision.recipe=bf16-with-fp8-current-scaling-mixed",
         "mixed_precision.recipe=bf16_with_fp8_current_scaling_mixed"}})
    EXPECT_THAT(said_of(typed), AllOf(HasSubstr(typed + std::string(" is not one of ")),
                                      EndsWith(std::string("try: ") + setting)));
}

} // namespace
} // namespace pentatron::trainer
