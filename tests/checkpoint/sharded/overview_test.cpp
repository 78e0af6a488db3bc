#include <algorithm>
#include <string>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "pentatron/checkpoint/sharded/overview.h"

namespace pentatron::checkpoint {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

/// The tensors of a model of 30 layers with AdamW's state.
Manifest of_many_layers() {
  Manifest manifest;
  manifest.iteration = 1200;
  manifest.state = {{"consumed_samples", 9600}, {"loss", 3.25}, {"nested", {{"not", "shown"}}}};
  const auto add = [&](const std::string& name, std::vector<int64_t> shape) {
    manifest.tensors[name] = {SafeDtype::kBF16, shape};
    for (const char* kind : {"exp_avg", "exp_avg_sq", "master"})
      manifest.tensors[name + "/" + kind] = {SafeDtype::kF32, shape};
  };
  add("embedding.weight", {49152, 576});
  add("final_norm.weight", {576});
  for (int i = 0; i < 30; ++i)
    for (const char* part : {"attention.proj.weight", "attention.qkv.weight", "mlp.down.weight",
                             "mlp.up.weight", "mlp_norm.weight", "attention_norm.weight"})
      add(fmt::format("layers.{}.{}", i, part), {576, 960});
  return manifest;
}

TEST(Overview, OfAModelOf135MillionParametersFitsAScreen) {
  const std::string page = overview(of_many_layers(), {.facts = {{"model", "30 layers"}}});
  EXPECT_LE(std::count(page.begin(), page.end(), '\n'), 30) << page;
  EXPECT_THAT(page, HasSubstr("model        30 layers\n"));
  EXPECT_THAT(page, HasSubstr("layers.*.attention.qkv.weight"));
  EXPECT_THAT(page,
              testing::ContainsRegex("layers\\.\\*\\.mlp\\.up\\.weight +30  576 x 960 +BF16"));
  EXPECT_THAT(page, testing::ContainsRegex("exp_avg_sq +182 +[0-9.]+M +F32"));
  EXPECT_THAT(page, HasSubstr("consumed_samples 9600, loss 3.25\n"));
  EXPECT_THAT(page, Not(HasSubstr("layers.0.")));
  for (size_t begin = 0, end; begin < page.size(); begin = end + 1) {
    end = page.find('\n', begin);
    EXPECT_LE(end - begin, 100u) << page.substr(begin, end - begin);
  }
}

TEST(Overview, WithAllNamesEveryTensorInOrder) {
  const std::string page = overview(of_many_layers(), {.all = true});
  for (const char* name :
       {"layers.0.mlp.up.weight ", "layers.29.mlp.up.weight ", "layers.7.mlp.up.weight/exp_avg "})
    EXPECT_THAT(page, HasSubstr(name));
  EXPECT_LT(page.find("layers.2."), page.find("layers.10."));
}

TEST(Overview, OfWeightsAlone) {
  Manifest manifest;
  manifest.tensors["w"] = {SafeDtype::kF32, {}};
  EXPECT_THAT(overview(manifest), HasSubstr("optimizer    no state: weights only\n"));
  EXPECT_THAT(overview(Manifest()), HasSubstr("parameters   0 in 0 tensors"));
}

TEST(WithoutNumbers, ReplacesWholePartsAlone) {
  EXPECT_EQ(without_numbers("layers.12.mlp.weight"), "layers.*.mlp.weight");
  EXPECT_EQ(without_numbers("a1.2b.3"), "a1.2b.*");
  EXPECT_EQ(without_numbers(""), "");
}

} // namespace
} // namespace pentatron::checkpoint
