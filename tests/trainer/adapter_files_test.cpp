/// Adapters in PEFT's files: which modules, ranks and scales adapter_config.json means.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "pentatron/base/safetensors.h"
#include "pentatron/checkpoint/adapters/adapter_source.h"
#include "pentatron/checkpoint/tensor_io.h"
#include "tests/trainer/adapter_run.h"

namespace pentatron::trainer {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

/// As `all-linear` and the names of experts' matrices become in peft.
TEST_F(AdapterRun, PatternsMayBeRegularExpressions) {
  const fs::path data = PENTATRON_TEST_DATA, adapter = scratch / "adapter";
  fs::copy(data / "peft_curves/mixtral_experts", adapter);
  const auto model = checkpoint::open_model((data / "hf_tiny/mixtral").string());
  const checkpoint::Adapter before = checkpoint::read_adapter(adapter, *model);
  change_settings(adapter, [](Json& fields) {
    const double alpha = fields["lora_alpha"].get<double>(), r = fields["r"].get<double>();
    fields["r"] = 17;
    fields["lora_alpha"] = 18;
    fields["rank_pattern"] = {{".*\\.(gate_up|down)_proj", r}, {".*[qvo]_proj", r}};
    fields["alpha_pattern"] = {{".*\\.gate_up_proj", 4 * alpha}, {"([qvo]|down)_proj", alpha}};
  });
  const checkpoint::Adapter after = checkpoint::read_adapter(adapter, *model);
  ASSERT_EQ(after.modules.size(), before.modules.size());
  int wider = 0;
  for (size_t i = 0; i < after.modules.size(); ++i) {
    const bool up = after.modules[i].module.hf.ends_with("gate_up_proj");
    wider += up ? 1 : 0;
    EXPECT_EQ(after.modules[i].rank, before.modules[i].rank);
    EXPECT_DOUBLE_EQ(after.modules[i].scale, before.modules[i].scale * (up ? 4 : 1))
        << after.modules[i].module.hf;
  }
  EXPECT_GT(wider, 0);
}

/// As in peft, which looks patterns up for the modules that it adapts.
TEST_F(AdapterRun, PatternsOfOtherModulesMeanNothing) {
  const fs::path data = PENTATRON_TEST_DATA, adapter = scratch / "adapter";
  fs::copy(data / "peft_curves/llama", adapter);
  const auto model = checkpoint::open_model((data / "hf_tiny/llama").string());
  const checkpoint::Adapter before = checkpoint::read_adapter(adapter, *model);
  change_settings(adapter, [](Json& fields) {
    fields["rank_pattern"] = {{"fc1", 3}, {"x.*", 3}};
    fields["alpha_pattern"] = {{"fc1", 3}};
  });
  const checkpoint::Adapter after = checkpoint::read_adapter(adapter, *model);
  ASSERT_EQ(after.modules.size(), before.modules.size());
  for (size_t i = 0; i < after.modules.size(); ++i)
    EXPECT_EQ(after.modules[i].scale, before.modules[i].scale);
}

/// As in peft, the first key in the file that matches counts, whatever comes later.
TEST_F(AdapterRun, TheFirstPatternInTheFileCounts) {
  const fs::path data = PENTATRON_TEST_DATA, adapter = scratch / "adapter";
  fs::copy(data / "peft_curves/llama", adapter);
  const auto model = checkpoint::open_model((data / "hf_tiny/llama").string());
  std::string text = read_json(adapter / "adapter_config.json").dump();
  const std::string none = R"("alpha_pattern":{})";
  const size_t at = text.find(none);
  ASSERT_NE(at, std::string::npos);
  fs::remove(adapter / "adapter_config.json");
  std::ofstream(adapter / "adapter_config.json")
      << text.replace(at, none.size(), R"("alpha_pattern":{"v_proj":4,"(q|v)_proj":8,"q_proj":2})");
  for (const checkpoint::AdaptedModule& one : checkpoint::read_adapter(adapter, *model).modules) {
    const std::string& name = one.module.hf;
    const double alpha = name.ends_with("v_proj") ? 4 : name.ends_with("q_proj") ? 8 : one.alpha;
    EXPECT_EQ(one.alpha, alpha) << name;
  }
}

/// Sequence classification saves [classifier, score], of which a model has one at most.
TEST_F(AdapterRun, ModulesToSaveAreCompleteInTheFile) {
  const fs::path data = PENTATRON_TEST_DATA, adapter = scratch / "adapter";
  fs::copy(data / "peft_curves/llama", adapter);
  const auto model = checkpoint::open_model((data / "hf_tiny/llama").string());
  change_settings(adapter, "modules_to_save", {"classifier", "score"});
  EXPECT_NO_THROW(checkpoint::read_adapter(adapter, *model));
  change_settings(adapter, "modules_to_save", {"score", "lm_head"});
  const auto told = AllOf(HasSubstr("contains lm_head in modules_to_save, but"),
                          HasSubstr("has no weights of it\n  try: "));
  EXPECT_THAT(message_of([&] { checkpoint::read_adapter(adapter, *model); }), told);
  EXPECT_THAT(error({"peft.load=" + adapter.string()}), told);
}

/// The tensors in the file show what peft's rules have chosen.
TEST_F(AdapterRun, ModulesChosenByRulesAreThoseInTheFile) {
  const fs::path data = PENTATRON_TEST_DATA, adapter = scratch / "adapter";
  fs::copy(data / "peft_curves/llama", adapter);
  const Json plain = read_json(adapter / "adapter_config.json");
  const auto model = checkpoint::open_model((data / "hf_tiny/llama").string());
  const auto read = [&](const std::string& key, const Json& value) {
    change_settings(adapter, [&](Json& fields) {
      fields = plain;
      fields[key] = value;
    });
    return checkpoint::read_adapter(adapter, *model);
  };
  const checkpoint::Adapter listed = read("target_modules", plain["target_modules"]);
  for (const auto& [key, value] :
       std::vector<std::pair<std::string, Json>>{{"target_modules", ".*(_proj)$"},
                                                 {"layers_to_transform", {0, 1}},
                                                 {"layers_to_transform", 0},
                                                 {"exclude_modules", "lm_head"}}) {
    const checkpoint::Adapter ruled = read(key, value);
    ASSERT_EQ(ruled.modules.size(), listed.modules.size()) << key;
    for (const auto& [name, tensor] : listed.tensors)
      EXPECT_TRUE(at::equal(ruled.tensors.at(name), tensor)) << name;
  }
  // One layer without adapters.
  std::map<std::string, at::Tensor> some = tensors_of(adapter);
  std::erase_if(some,
                [](const auto& one) { return one.first.find(".layers.0.") == std::string::npos; });
  replace_tensors(adapter, some);
  const size_t half = read("layers_to_transform", {0}).modules.size();
  EXPECT_EQ(2 * half, listed.modules.size());
}

/// In models with experts PEFT takes names of layers in MLPs, however complete, for those of the
/// experts (tests/peers/peft_adapters.py has PEFT read such files).
TEST_F(AdapterRun, LayersOfMlpsBesideExpertsAreParameters) {
  base = fs::path(PENTATRON_TEST_DATA) / "hf_tiny/deepseek_v3";
  const std::vector<std::string> keys = {save(), "checkpoint.export_hf=true",
                                         "peft.target_modules=[down_proj,o_proj,router]",
                                         "peft.rank_pattern=[\"layers.0.*.down_proj=3\"]"};
  const test::Trace run = test::run(config(keys));
  const fs::path adapter = scratch / "ck/adapter";
  const Json fields = read_json(adapter / "adapter_config.json");
  EXPECT_EQ(fields["target_modules"], Json({"o_proj"}));
  const auto parameters = fields["target_parameters"].get<std::vector<std::string>>();
  EXPECT_THAT(parameters, testing::Contains("model.layers.0.mlp.down_proj.weight"));
  EXPECT_THAT(parameters, testing::Contains(HasSubstr(".mlp.shared_experts.down_proj.weight")));
  EXPECT_THAT(parameters, testing::Contains(HasSubstr(".mlp.gate.weight")));
  EXPECT_EQ(fields["rank_pattern"], Json({{"model.layers.0.mlp.down_proj.weight", 3}}));
  const auto model = checkpoint::open_model(base.string());
  const checkpoint::Adapter read = checkpoint::read_adapter(adapter, *model),
                            saved = checkpoint::read_adapter(scratch / "ck", *model);
  EXPECT_EQ(read.modules.size(), saved.modules.size());
  for (const auto& [name, tensor] : saved.tensors)
    EXPECT_TRUE(at::equal(read.tensors.at(name), tensor.to(read.tensors.at(name).dtype()))) << name;
}

} // namespace
} // namespace pentatron::trainer
