// What files of Hugging Face leave to their family, and models that transformers does not load.
#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "pentatron/base/json.h"
#include "pentatron/checkpoint/hf/hf_config.h"
#include "pentatron/checkpoint/hf/hf_export.h"
#include "tests/support/files.h"
#include "tests/support/ranks.h"

namespace pentatron::checkpoint {
namespace {

namespace fs = std::filesystem;
using models::ModelConfig;
using pentatron::test::error_of;
using ::testing::AllOf;
using ::testing::HasSubstr;

const fs::path kHfModels = fs::path(PENTATRON_TEST_DATA) / "hf_tiny";

Json config_of(const std::string& model) {
  return read_json(kHfModels / model / "config.json");
}
ModelConfig read(const Json& json) {
  return parse_hf_config(json, "config.json").config;
}

/// Those of the classes of transformers 5.23.
TEST(HfDefaults, NumbersOfHeadsAreThoseOfTheFamily) {
  struct Case {
    const char* model;
    int64_t heads, groups; ///< groups without the key
  };
  for (const auto& [model, heads, groups] :
       {Case{"llama", 4, 4}, Case{"mistral_sliding_window", 16, 8}, Case{"qwen2", 64, 32},
        Case{"qwen3", 64, 32}, Case{"phi3", 4, 4}, Case{"olmo2", 4, 4}, Case{"glm4", 4, 2},
        Case{"gemma2", 8, 4}, Case{"gemma3_text", 8, 4}, Case{"mixtral", 16, 8},
        Case{"olmoe", 4, 4}, Case{"qwen2_moe", 32, 16}, Case{"qwen3_moe", 8, 4},
        Case{"gpt_oss", 16, 8}}) {
    Json json = config_of(model);
    json["num_attention_heads"] = heads;
    json["head_dim"] = 8;
    json["num_key_value_heads"] = nullptr;
    EXPECT_EQ(read(json).query_groups(), heads) << model;
    json.erase("num_key_value_heads");
    EXPECT_EQ(read(json).query_groups(), groups) << model;
  }
  Json deepseek = config_of("deepseek_v3");
  deepseek.erase("num_key_value_heads");
  EXPECT_THAT(error_of([&] { read(deepseek); }), HasSubstr("num_key_value_heads=128"));
}

TEST(HfDefaults, SizesOfHeadsAreThoseOfTheFamily) {
  for (const auto& [model, size] : {std::pair{"glm4", 128},
                                    {"qwen3", 128},
                                    {"gemma2", 256},
                                    {"gemma3_text", 256},
                                    {"gpt_oss", 64},
                                    {"qwen3_moe", 12},
                                    {"mixtral", 12}}) {
    Json json = config_of(model);
    json.erase("head_dim");
    json["hidden_size"] = 12 * json["num_attention_heads"].get<int64_t>();
    EXPECT_EQ(read(json).head_size(), size) << model;
  }
}

TEST(HfActivations, HaveTheNamesOfTransformers) {
  using A = models::ActivationFunction;
  for (const auto& [name, function] : {std::pair{"gelu_python", A::kGelu},
                                       {"gelu_fast", A::kGeluTanh},
                                       {"gelu_accurate", A::kGeluTanh},
                                       {"gelu_python_tanh", A::kGeluTanh}}) {
    Json json = config_of("gpt2");
    json["activation_function"] = name;
    EXPECT_EQ(read(json).activation_func, function) << name;
  }
  Json json = config_of("gpt2");
  json["activation_function"] = "tanh";
  EXPECT_THAT(error_of([&] { read(json); }), HasSubstr("activation_function=tanh"));
}

Json yarn(Json more = Json::object()) {
  Json rope = {{"rope_type", "yarn"},
               {"factor", 4.0},
               {"rope_theta", 100.0},
               {"original_max_position_embeddings", 33}};
  rope.update(more);
  return rope;
}

/// Positions by kind of layer: transformers takes the length they were made for from the kind
/// alone, and whether YaRN truncates from beside the kinds.
TEST(HfPositions, OfGemma3AreReadAsTransformersReadsThem) {
  Json json = config_of("gemma3_text");
  json.erase("rope_scaling");
  json["original_max_position_embeddings"] = 8;
  json["rope_parameters"] = {{"full_attention", yarn({{"truncate", false}})},
                             {"sliding_attention", nullptr}};
  const ModelConfig plain = read(json);
  EXPECT_EQ(plain.rope_scaling.original_max_position_embeddings, 33);
  EXPECT_TRUE(plain.rope_scaling.truncate);
  json["rope_parameters"]["truncate"] = false;
  const ModelConfig whole = read(json);
  EXPECT_FALSE(whole.rope_scaling.truncate);
  const Json made = make_hf_config(whole).config;
  EXPECT_EQ(made["rope_parameters"]["truncate"], false);
  EXPECT_TRUE(same_model(read(made), whole));
  // Both kinds or neither.
  ModelConfig mixed = whole;
  mixed.rope_local_base_freq = 10000;
  mixed.rope_local_scaling = plain.rope_scaling;
  EXPECT_THAT(error_of([&] { make_hf_config(mixed); }),
              HasSubstr("model.rope_local_scaling.truncate=true"));
  // The older form names the kind of scaling rope_type alone.
  json.erase("rope_parameters");
  json["rope_scaling"] = {{"type", "linear"}, {"factor", 2.0}};
  EXPECT_EQ(read(json).rope_scaling.type, models::RopeScalingType::kNone);
  json["rope_scaling"] = yarn({{"truncate", false}});
  EXPECT_TRUE(read(json).rope_scaling.truncate);
}

class HfShapes : public testing::Test {
 protected:
  void write(const Json& json) { std::ofstream(folder_.path() / "config.json") << json; }
  std::string import_error(const Json& json) {
    write(json);
    return error_of([&] { read_hf_config(folder_.path()); });
  }
  const TemporaryFolder folder_;
};

TEST_F(HfShapes, OfHeadsThatDoNotDivideTheHiddenSize) {
  for (const char* model : {"llama", "gemma2", "gemma3_text"}) {
    Json json = config_of(model);
    json["hidden_size"] = 46;
    json["head_dim"] = 8;
    const std::string why = "hidden_size=46 is not a multiple of num_attention_heads=4";
    EXPECT_THAT(import_error(json), HasSubstr(why + ", which transformers")) << model;
    // Mistral's differ from Llama's in the check alone.
    if (json["model_type"] == "llama")
      EXPECT_EQ(make_hf_config(read(json), "llama").family, "mistral");
    else
      EXPECT_THAT(error_of([&] { make_hf_config(read(json)); }),
                  AllOf(HasSubstr("no Hugging Face family"), HasSubstr(why)));
  }
}

TEST_F(HfShapes, OfHeadsThatAreNotAsWideAsTheHiddenStates) {
  Json json = config_of("olmoe");
  json["head_dim"] = 12;
  const std::string why = "num_attention_heads=4 times the head size 12 is not hidden_size=";
  EXPECT_THAT(import_error(json), HasSubstr(why));
  EXPECT_THAT(error_of([&] { make_hf_config(read(json)); }), HasSubstr(why));
}

TEST_F(HfShapes, WhatTransformersDoesNotLoad) {
  Json glm4 = config_of("glm4");
  glm4["head_dim"] = 12;
  glm4["rope_parameters"] = {{"rope_type", "yarn"},
                             {"factor", 4.0},
                             {"rope_theta", 1e4},
                             {"partial_rotary_factor", 0.25},
                             {"original_max_position_embeddings", 32}};
  EXPECT_THAT(import_error(glm4), HasSubstr("rope_type yarn with an odd rotary size, 3"));
  Json windows = config_of("gemma2");
  windows["sliding_window"] = nullptr;
  EXPECT_THAT(import_error(windows),
              HasSubstr("sliding_window=null with layers of sliding_attention is not supported"));
  windows["layer_types"] = {"full_attention", "full_attention"};
  EXPECT_EQ(read(windows).window_size, std::nullopt);
  for (const char* key : {"query_pre_attn_scalar", "hidden_activation"}) {
    Json gemma = config_of("gemma2");
    gemma[key] = nullptr;
    EXPECT_THAT(import_error(gemma), HasSubstr(std::string(key) + "=null is not supported"));
  }
}

TEST_F(HfShapes, OfT5WhoseOutputsMayBeScaled) {
  Json json = config_of("t5"); // tied, and without the key: scaled
  json.erase("scale_decoder_outputs");
  EXPECT_TRUE(read(json).scale_decoder_outputs);
  json["scale_decoder_outputs"] = nullptr; // no
  EXPECT_FALSE(read(json).scale_decoder_outputs);
  json["scale_decoder_outputs"] = true;
  EXPECT_TRUE(read(json).scale_decoder_outputs);
}

TEST_F(HfShapes, OfLongropeWhoseFactorsTransformersCountsOtherwise) {
  Json json = config_of("phi3_longrope"); // heads of 12, of which int(12 * 0.7) = 8 rotate
  json["head_dim"] = 12;
  write(json);
  EXPECT_NO_THROW(read_hf_config(folder_.path()));
  EXPECT_EQ(make_hf_config(read(json)).family, "phi3");
  json["hidden_size"] = 48;
  const std::string why = "longrope has 4 factors and not 8, half of hidden_size=48";
  EXPECT_THAT(import_error(json), HasSubstr(why));
  EXPECT_THAT(error_of([&] { make_hf_config(read(json)); }), HasSubstr(why));
}

} // namespace
} // namespace pentatron::checkpoint
