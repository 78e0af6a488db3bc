// Hugging Face folders that are not what they should be: one sentence, never a crash.
#include <ATen/ATen.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "pentatron/base/json.h"
#include "pentatron/base/safetensors.h"
#include "pentatron/checkpoint/hf/hf_config.h"
#include "pentatron/checkpoint/hf/hf_export.h"
#include "pentatron/checkpoint/hf/hf_weights.h"
#include "pentatron/checkpoint/source_facts.h"
#include "pentatron/checkpoint/tensor_io.h"
#include "pentatron/parallelize/parallelize.h"
#include "tests/support/files.h"
#include "tests/support/ranks.h"

namespace pentatron::checkpoint {
namespace {

namespace fs = std::filesystem;
using test::error_of;
using ::testing::AllOf;
using ::testing::HasSubstr;

const fs::path kHfModels = fs::path(PENTATRON_TEST_DATA) / "hf_tiny";

class HfImport : public testing::Test {
 protected:
  /// The config of a model with some members changed; null removes one.
  HfModel with_changes(const std::string& model, const Json& changes) {
    Json json = read_json(kHfModels / model / "config.json");
    json.merge_patch(changes);
    std::ofstream(folder / "config.json") << json;
    return read_hf_config(folder);
  }
  std::string error_with(const std::string& model, const Json& changes) {
    return error_of([&] { with_changes(model, changes); });
  }
  std::string load_error(const std::string& model) {
    const HfModel hf = read_hf_config(kHfModels / model);
    parallelize::RankModel built = parallelize::make_model({.config = hf.config,
                                                            .build = {.dtype = at::kFloat},
                                                            .max_sequence = 8,
                                                            .gradients = false},
                                                           {});
    return error_of([&] { open_hf_model(folder, hf)->load(built.model->params()); });
  }
  std::map<std::string, at::Tensor> weights_of(const std::string& model) {
    std::map<std::string, at::Tensor> tensors;
    const SafetensorsFile file(kHfModels / model / "model.safetensors");
    for (const auto& [name, entry] : file.tensors()) tensors[name] = to_tensor(entry);
    return tensors;
  }
  const TemporaryFolder temporary;
  const fs::path folder = temporary.path();
};

TEST_F(HfImport, RefusesWhatItDoesNotSupportByName) {
  EXPECT_THAT(error_with("llama", {{"model_type", "perceiver"}}),
              HasSubstr("model_type=perceiver"));
  EXPECT_THAT(error_with("llama", {{"rope_parameters", {{"rope_type", "proportional"}}}}),
              HasSubstr("rope_type proportional"));
  EXPECT_THAT(error_with("llama", {{"rope_scaling", {{"type", "axial"}, {"factor", 2.0}}},
                                   {"rope_parameters", nullptr}}),
              HasSubstr("rope_type axial"));
  EXPECT_THAT(error_with("llama", {{"rope_parameters", {{"rope_type", "longrope"}}}}),
              HasSubstr("short_factor"));
  EXPECT_THAT(
      error_with("phi3_longrope", {{"rope_parameters", {{"long_factor", {1, 2}}}}}),
      testing::AllOf(HasSubstr("long_factor has 2 numbers, but 4 pairs of dimensions rotate"),
                     HasSubstr("try: rope_scaling.long_factor=[1,1,1,1]")));
  EXPECT_THAT(error_with("phi3", {{"rope_parameters", {{"rope_type", "linear"}, {"factor", 2}}}}),
              HasSubstr("for phi3, a rope_type other than default and longrope"));
  EXPECT_THAT(error_with("llama", {{"hidden_act", "tanh"}}), HasSubstr("hidden_act=tanh"));
  EXPECT_THAT(error_with("gpt2", {{"add_cross_attention", true}}),
              HasSubstr("add_cross_attention"));
  EXPECT_THAT(error_with("mistral_sliding_window", {{"attention_bias", true}}),
              HasSubstr("attention_bias"));
}

TEST_F(HfImport, RefusesWhatChangesAnEncodersNumbers) {
  const auto labels = [](const char* problem, const Json& names) {
    return Json{{"problem_type", problem}, {"id2label", names}};
  };
  EXPECT_THAT(
      error_with("bert", {{"architectures", {"BertForTokenClassification"}}}),
      AllOf(HasSubstr("the architecture BertForTokenClassification"),
            HasSubstr("try: save its encoder alone, with model.bert.save_pretrained(DIR)")));
  EXPECT_THAT(error_with("bert", {{"is_decoder", true}}), HasSubstr("is_decoder=true"));
  EXPECT_THAT(error_with("bert", {{"type_vocab_size", 0}}), HasSubstr("type_vocab_size=0"));
  EXPECT_THAT(error_with("bert", {{"position_embedding_type", "relative_key"}}),
              HasSubstr("position_embedding_type=relative_key"));
  EXPECT_THAT(error_with("bert_regression", labels("multi_label_classification", nullptr)),
              HasSubstr("problem_type=multi_label_classification"));
  EXPECT_THAT(error_with("bert_regression", labels("single_label_classification", Json::object())),
              HasSubstr("classification into one class"));
  EXPECT_THAT(error_with("bert_regression", labels("regression", {{"1", "b"}})),
              HasSubstr("regression of 2 numbers"));
  EXPECT_THAT(error_with("roberta_masked_lm", {{"hidden_act", "relu"}}),
              HasSubstr("hidden_act=relu before a head of masked tokens, which has gelu"));
  Json relu = read_json(kHfModels / "roberta_classification/config.json");
  relu["hidden_act"] = "relu"; // the head of samples has no activation of the model's
  EXPECT_NO_THROW(parse_hf_config(relu, "config.json"));
  EXPECT_THAT(error_with("t5", {{"architectures", {"T5EncoderModel"}}}),
              AllOf(HasSubstr("the architecture T5EncoderModel"),
                    HasSubstr("try: save the whole model, with "
                              "T5ForConditionalGeneration.save_pretrained(DIR)")));
  EXPECT_THAT(error_with("t5", {{"pad_token_id", 3000}}), HasSubstr("decoder_pad_token=3000"));
  EXPECT_THAT(error_with("t5", {{"feed_forward_proj", "gated-tanh"}, {"dense_act_fn", nullptr}}),
              HasSubstr("feed_forward_proj=gated-tanh"));
  // Also where another key names the function.
  for (const char* mlp : {"foo", "gated-foo", "relu-gated", "gated-relu2"})
    EXPECT_THAT(error_with("t5", {{"feed_forward_proj", mlp}}),
                AllOf(HasSubstr(fmt::format("feed_forward_proj={} is not supported", mlp)),
                      HasSubstr("try: feed_forward_proj=NAME, with a gate gated-NAME, NAME one of "
                                "relu, gelu, ")));
  for (const char* mlp : {"relu", "gated-gelu", "gated-silu"})
    EXPECT_NO_THROW(with_changes("t5", {{"feed_forward_proj", mlp}})) << mlp;
  EXPECT_THAT(error_with("t5", {{"relative_attention_max_distance", 16}}),
              HasSubstr("relative_attention_max_distance=16"));
}

// The attribute_map of transformers.
TEST(HfConfig, KeysHaveOtherNamesInSomeFamilies) {
  const auto renamed = [](const std::string& model,
                          const std::vector<std::pair<std::string, std::string>>& names) {
    Json json = read_json(kHfModels / model / "config.json");
    for (const auto& [own, other] : names) {
      json[other] = json.at(own);
      json.erase(own);
    }
    return parse_hf_config(json, "config.json").config;
  };
  const auto same = [&](const std::string& model, const auto& names) {
    const models::ModelConfig plain =
        parse_hf_config(read_json(kHfModels / model / "config.json"), "config.json").config;
    EXPECT_TRUE(same_model(renamed(model, names), plain)) << model;
  };
  using Names = std::vector<std::pair<std::string, std::string>>;
  same("gpt2", Names{{"n_head", "num_attention_heads"},
                     {"n_layer", "num_hidden_layers"},
                     {"n_embd", "hidden_size"},
                     {"n_positions", "max_position_embeddings"}});
  same("t5", Names{{"d_model", "hidden_size"},
                   {"num_heads", "num_attention_heads"},
                   {"num_layers", "num_hidden_layers"},
                   {"d_kv", "head_dim"}});
  same("deepseek_v3", Names{{"n_routed_experts", "num_local_experts"}});
  Json both = read_json(kHfModels / "gpt2/config.json");
  both["num_attention_heads"] = both["n_head"].get<int64_t>() * 2;
  EXPECT_THAT(error_of([&] { parse_hf_config(both, "config.json"); }),
              AllOf(HasSubstr("contradicts n_head="), HasSubstr("try: ")));
}

TEST(HfConfig, WindowsOfQwenWithoutLayerTypes) {
  const auto full_layers = [](const std::string& model, const Json& changes) {
    Json json = read_json(kHfModels / model / "config.json");
    json.erase("layer_types");
    json["num_hidden_layers"] = 5;
    json.merge_patch(changes);
    return parse_hf_config(json, "config.json").config.full_attention_layers;
  };
  using Layers = std::vector<int64_t>;
  const Json window = {
      {"use_sliding_window", true}, {"sliding_window", 7}, {"max_window_layers", 3}};
  EXPECT_EQ(full_layers("qwen2", window), (Layers{0, 1, 2}));
  EXPECT_EQ(full_layers("qwen3", window), (Layers{0, 1, 2}));
  EXPECT_EQ(full_layers("qwen2_moe", window), (Layers{1, 3, 4}));
  for (const char* model : {"qwen2", "qwen3", "qwen2_moe", "qwen3_moe"}) {
    Json json = read_json(kHfModels / model / "config.json");
    json.erase("layer_types");
    json.erase("sliding_window");
    json["use_sliding_window"] = true;
    json["max_window_layers"] = 1;
    EXPECT_EQ(parse_hf_config(json, "config.json").config.window_size, 4096) << model;
  }
  Json off = read_json(kHfModels / "qwen2/config.json");
  off["use_sliding_window"] = false;
  off["layer_types"] = Json::array();
  for (int64_t i = 0; i < off["num_hidden_layers"].get<int64_t>(); ++i)
    off["layer_types"].push_back("sliding_attention");
  EXPECT_THAT(error_of([&] { parse_hf_config(off, "config.json"); }),
              HasSubstr("beside use_sliding_window=false"));
}

TEST(HfConfig, DecodersThatLookAheadAreRefused) {
  for (const char* model : {"gpt2", "llama", "gpt_oss", "deepseek_v3"}) {
    Json json = read_json(kHfModels / model / "config.json");
    json["is_causal"] = false;
    EXPECT_THAT(error_of([&] { parse_hf_config(json, "config.json"); }),
                HasSubstr("is_causal=false"))
        << model;
  }
}

TEST(HfConfig, NamesOfClassesAreReadAndWritten) {
  const auto read = [](const Json& id2label) {
    Json json = read_json(kHfModels / "roberta_classification/config.json");
    json["id2label"] = id2label;
    return parse_hf_config(json, "config.json").config;
  };
  using Names = std::vector<std::string>;
  const models::ModelConfig named = read({{"0", "no"}, {"1", "yes"}, {"2", "maybe"}});
  EXPECT_EQ(named.num_labels, 3);
  EXPECT_EQ(named.label_names, (Names{"no", "yes", "maybe"}));
  const Json back = make_hf_config(named, "roberta").config;
  EXPECT_EQ(back["id2label"], (Json{{"0", "no"}, {"1", "yes"}, {"2", "maybe"}}));
  EXPECT_EQ(back["label2id"], (Json{{"no", 0}, {"yes", 1}, {"maybe", 2}}));
  EXPECT_EQ(back["problem_type"], "single_label_classification");
  // A class that has no name is called so by transformers.
  models::ModelConfig partly = read({{"0", "no"}, {"1", "LABEL_1"}, {"2", "LABEL_2"}});
  EXPECT_EQ(partly.label_names, Names{"no"});
  EXPECT_EQ(make_hf_config(partly, "roberta").config["id2label"],
            (Json{{"0", "no"}, {"1", "LABEL_1"}, {"2", "LABEL_2"}}));
  EXPECT_TRUE(read({{"0", "LABEL_0"}, {"1", "LABEL_1"}, {"2", "LABEL_2"}}).label_names.empty());
  // What does not tell classes apart names none.
  EXPECT_TRUE(read({{"0", "a"}, {"1", "a"}, {"2", "b"}}).label_names.empty());
  EXPECT_TRUE(read({{"0", "a"}, {"1", 7}, {"2", "b"}}).label_names.empty());
  EXPECT_TRUE(read({{"1", "a"}, {"2", "b"}, {"3", "c"}}).label_names.empty());
  models::ModelConfig number = named;
  number.head = models::ModelHead::kRegression;
  number.label_names.clear();
  const Json regression = make_hf_config(number, "roberta").config;
  EXPECT_EQ(regression["problem_type"], "regression");
  EXPECT_EQ(regression["id2label"], (Json{{"0", "LABEL_0"}}));
}

/// Scalings of rotary positions, also of some layers alone, there and back, and in older files.
TEST(HfConfig, ScalingsOfRotaryPositionsComeBack) {
  const auto read = [](const Json& json) { return parse_hf_config(json, "config.json").config; };
  for (const char* name : {"llama_dynamic", "phi3_longrope", "gemma3_text_scaled", "t5_reglu"}) {
    const Json json = read_json(kHfModels / name / "config.json");
    const HfExport made = make_hf_config(read(json));
    EXPECT_EQ(made.family, json["model_type"]);
    for (const char* key : {"feed_forward_proj", "pad_token_id", "decoder_start_token_id"})
      EXPECT_EQ(made.config.value(key, Json()), json.value(key, Json())) << key;
    EXPECT_TRUE(same_model(read(made.config), read(json))) << name;
  }
  Json json = read_json(kHfModels / "phi3_longrope/config.json");
  const models::ModelConfig longrope = read(json);
  EXPECT_EQ(longrope.rope_scaling.type, models::RopeScalingType::kLongRope);
  EXPECT_EQ(longrope.rope_scaling.factor, 3) << "the ratio of the lengths";
  json["rope_scaling"] = {{"type", "su"},
                          {"short_factor", json["rope_parameters"]["short_factor"]},
                          {"long_factor", json["rope_parameters"]["long_factor"]}};
  json["rope_theta"] = 10000.0;
  json["partial_rotary_factor"] = 0.7;
  json.erase("rope_parameters");
  EXPECT_TRUE(same_model(read(json), longrope));
  json.erase("original_max_position_embeddings");
  EXPECT_EQ(read(json).rope_scaling.original_max_position_embeddings, 4096);
  json = read_json(kHfModels / "gemma3_text_scaled/config.json");
  const models::ModelConfig scaled = read(json);
  EXPECT_EQ(scaled.rope_scaling.type, models::RopeScalingType::kLinear);
  EXPECT_EQ(scaled.rope_local_scaling.type, models::RopeScalingType::kLlama3);
  EXPECT_EQ(scaled.rope_local_base_freq, 10000);
  // The older form scales the layers without a window alone.
  json.erase("rope_parameters");
  json.update({{"rope_scaling", {{"rope_type", "linear"}, {"factor", 8.0}}},
               {"rope_theta", 5e5},
               {"rope_local_base_freq", 200.0}});
  const models::ModelConfig older = read(json);
  EXPECT_EQ(older.rope_scaling.factor, 8);
  EXPECT_EQ(older.rotary_base, 5e5);
  EXPECT_EQ(older.rope_local_base_freq, 200);
  EXPECT_EQ(older.rope_local_scaling, models::RopeScalingConfig());
  EXPECT_TRUE(same_model(read(make_hf_config(older).config), older));
  models::ModelConfig dynamic = read(read_json(kHfModels / "llama_dynamic/config.json"));
  EXPECT_EQ(dynamic.longest_sequence(), 60) << "factor times max_position_embeddings";
}

/// What transformers 5.23 makes of files that leave keys out or say a thing twice.
TEST(HfConfig, SaysWhatTransformersReads) {
  const auto read = [](const std::string& model, const auto& change) {
    Json json = read_json(kHfModels / model / "config.json");
    change(json);
    return parse_hf_config(json, "config.json").config;
  };
  // rope_scaling, where it is something, stands in place of rope_parameters.
  const models::ModelConfig scaled = read("llama", [](Json& json) {
    json["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 500000.0}};
    json["rope_scaling"] = {{"type", "linear"}, {"factor", 2.0}};
  });
  EXPECT_EQ(scaled.rope_scaling.type, models::RopeScalingType::kLinear);
  EXPECT_EQ(scaled.rope_scaling.factor, 2);
  // A yarn without a factor has that of the lengths, and the length beside the sections wins.
  const models::ModelConfig yarn = read("llama", [](Json& json) {
    json["max_position_embeddings"] = 128;
    json["original_max_position_embeddings"] = 32;
    json["rope_parameters"] = {
        {"rope_type", "yarn"}, {"factor", nullptr}, {"original_max_position_embeddings", 64}};
    json.erase("rope_scaling");
  });
  EXPECT_EQ(yarn.rope_scaling.factor, 4);
  EXPECT_EQ(yarn.rope_scaling.original_max_position_embeddings, 32);
  // No window is null; a file without the key has that of the family.
  for (const char* model : {"mistral_sliding_window", "gemma2"}) {
    EXPECT_EQ(read(model, [](Json& json) { json.erase("sliding_window"); }).window_size, 4096);
    const auto no_window = [](Json& json) {
      json["sliding_window"] = nullptr;
      if (json.contains("layer_types"))
        for (Json& type : json["layer_types"]) type = "full_attention";
    };
    EXPECT_EQ(read(model, no_window).window_size, std::nullopt);
  }
  // Only Gemma 2 caps scores.
  const auto capped = [](Json& json) { json["attn_logit_softcapping"] = 3.0; };
  EXPECT_EQ(read("gemma2", capped).attn_logit_softcapping, 3);
  EXPECT_EQ(read("gemma3_text", capped).attn_logit_softcapping, std::nullopt);
  // T5's keys of the MLP stand over the name of both; tied is what is not told otherwise.
  const models::ModelConfig t5 = read("t5", [](Json& json) {
    json["feed_forward_proj"] = "gated-gelu";
    json["dense_act_fn"] = "gelu";
    json.erase("is_gated_act");
    json.erase("scale_decoder_outputs");
    json["tie_word_embeddings"] = false;
  });
  EXPECT_EQ(t5.activation_func, models::ActivationFunction::kGeGlu);
  EXPECT_FALSE(t5.scale_decoder_outputs);
  EXPECT_EQ(read("t5", [](Json& json) { json.erase("dense_act_fn"); }).activation_func,
            models::ActivationFunction::kRelu);
  // gemma3_text merges rope_scaling into its layers with full attention.
  const models::ModelConfig gemma3 = read("gemma3_text", [](Json& json) {
    json["rope_scaling"] = {{"rope_type", "linear"}, {"factor", 8.0}};
  });
  EXPECT_EQ(gemma3.rope_scaling.factor, 8);
  EXPECT_EQ(gemma3.rotary_base, read("gemma3_text", [](Json&) {}).rotary_base);
  // Its windows may share the base of all layers, and their scaling: both go there and back.
  for (const bool scaled : {false, true}) {
    models::ModelConfig shared = read("gemma3_text", [](Json&) {});
    shared.rope_local_base_freq.reset();
    if (scaled) {
      shared.rope_scaling.type = models::RopeScalingType::kLinear;
      shared.rope_scaling.factor = 4;
    }
    const HfExport made = make_hf_config(shared);
    EXPECT_EQ(made.family, "gemma3_text");
    EXPECT_TRUE(same_model(parse_hf_config(made.config, "config.json").config, shared));
  }
  for (const auto& [family, positions] : {std::pair{"llama", 2048},
                                          {"mistral_sliding_window", 131072},
                                          {"qwen2", 32768},
                                          {"qwen3", 32768},
                                          {"olmo2", 2048},
                                          {"phi3", 4096},
                                          {"gemma2", 8192},
                                          {"gemma3_text", 131072},
                                          {"glm4", 131072}})
    EXPECT_EQ(read(family, [](Json& json) { json.erase("max_position_embeddings"); })
                  .max_position_embeddings,
              positions)
        << family;
  // As transformers: int(16 * 0.35) = 5 dimensions, rounded up to pairs.
  EXPECT_NO_THROW(read("glm4", [](Json& json) {
    json.erase("rope_parameters");
    json["partial_rotary_factor"] = 0.35;
  }));
}

TEST_F(HfImport, RefusesModelsThatCannotBe) {
  EXPECT_THAT(error_with("llama", {{"num_hidden_layers", 0}}), HasSubstr("num_layers"));
  EXPECT_THAT(error_with("llama", {{"num_hidden_layers", "two"}}), HasSubstr("num_hidden_layers"));
  EXPECT_THAT(error_with("llama", {{"num_hidden_layers", nullptr}}),
              HasSubstr("num_hidden_layers"));
  EXPECT_THAT(error_with("llama", {{"num_attention_heads", 0}}), HasSubstr("num_attention_heads"));
  EXPECT_THAT(error_with("llama", {{"num_key_value_heads", 3}}), HasSubstr("num_query_groups=3"));
  EXPECT_THAT(error_with("llama", {{"hidden_size", -48}}), HasSubstr("hidden_size"));
  EXPECT_THAT(error_with("llama", {{"vocab_size", 1.5}}), HasSubstr("vocab_size"));
  EXPECT_THAT(error_with("llama", {{"rope_parameters", 5}}), HasSubstr("rope_parameters"));
  EXPECT_THAT(error_with("llama", {{"layer_types", {"full_attention"}}}), HasSubstr("layer_types"));
  EXPECT_THAT(error_with("gemma3_text", {{"layer_types", nullptr}, {"sliding_window_pattern", 0}}),
              HasSubstr("sliding_window_pattern=0"));
  Json kinds = read_json(kHfModels / "gemma2" / "config.json")["layer_types"];
  kinds[0] = "chunked_attention";
  EXPECT_THAT(error_with("gemma2", {{"layer_types", kinds}}), HasSubstr("chunked_attention"));
}

TEST_F(HfImport, RefusesFilesThatAreNoConfig) {
  EXPECT_THAT(error_of([&] { read_hf_config(folder); }), HasSubstr("contains no config.json"));
  EXPECT_THAT(error_of([&] { read_hf_config(folder / "nowhere"); }),
              HasSubstr("nowhere does not exist"));
  std::ifstream in(kHfModels / "llama/config.json");
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  for (size_t cut = 0; cut + 2 < text.size(); cut += 37) {
    std::ofstream(folder / "config.json") << text.substr(0, cut);
    EXPECT_THAT(error_of([&] { read_hf_config(folder); }), HasSubstr("config.json"));
  }
  for (const char* other : {"[]", "null", "7", "{\"a\": 1, \"a\": 2}"}) {
    std::ofstream(folder / "config.json") << other;
    EXPECT_THAT(error_of([&] { read_hf_config(folder); }), HasSubstr("config.json"));
  }
}

TEST_F(HfImport, NamesTensorsThatDoNotFit) {
  EXPECT_THAT(load_error("llama"), HasSubstr("model.safetensors"));
  auto tensors = weights_of("llama");
  const auto with = [&](const std::function<void(std::map<std::string, at::Tensor>&)>& change) {
    auto changed = tensors;
    change(changed);
    write_tensors(folder / "model.safetensors", changed);
    return load_error("llama");
  };
  EXPECT_THAT(with([](auto& t) { t.erase("model.norm.weight"); }),
              HasSubstr("model.norm.weight is missing"));
  EXPECT_THAT(with([](auto& t) { t["extra"] = at::zeros({2}); }),
              HasSubstr("extra is not part of the model"));
  EXPECT_THAT(with([](auto& t) { t["model.norm.weight"] = at::zeros({47}); }),
              HasSubstr("model.norm.weight has shape [47] instead of [48]"));
  EXPECT_THAT(with([](auto& t) { t["model.norm.weight"] = at::zeros({48}, at::kLong); }),
              HasSubstr("model.norm.weight is of type I64"));
  EXPECT_THAT(with([](auto& t) { t.clear(); }), HasSubstr("21 problems"));
  fs::copy_file(kHfModels / "llama/model.safetensors", folder / "whole.safetensors");
  for (const uintmax_t size : {uintmax_t{0}, uintmax_t{7}, uintmax_t{100}, uintmax_t{5000}}) {
    fs::copy_file(folder / "whole.safetensors", folder / "model.safetensors",
                  fs::copy_options::overwrite_existing);
    fs::resize_file(folder / "model.safetensors", size);
    EXPECT_THAT(load_error("llama"), HasSubstr("model.safetensors"));
  }
}

/// A prefix may be missing where transformers leaves it out, and nowhere else.
TEST_F(HfImport, NamesWithoutAPrefixAreThoseOfTheFamily) {
  const auto without = [&](const std::string& model, const std::string& prefix) {
    fs::copy_file(kHfModels / model / "config.json", folder / "config.json",
                  fs::copy_options::overwrite_existing);
    std::map<std::string, at::Tensor> tensors;
    for (const auto& [name, tensor] : weights_of(model))
      tensors[name.starts_with(prefix) ? name.substr(prefix.size()) : name] = tensor;
    write_tensors(folder / "model.safetensors", tensors);
    return open_hf_model(folder);
  };
  EXPECT_NO_THROW(without("llama", "model."));
  EXPECT_NO_THROW(without("gpt2", "transformer."));
  EXPECT_NO_THROW(without("bert_masked_lm", "bert."));
  EXPECT_NO_THROW(without("roberta_masked_lm", "roberta."));
  for (const char* const prefix : {"", "bert."}) { // names of norms in files of the first BERT
    auto tensors = weights_of("bert_masked_lm");
    for (const auto& [name, tensor] : weights_of("bert_masked_lm")) {
      std::string then = name.starts_with("bert.") ? prefix + name.substr(5) : name;
      for (const auto& [now, old] : {std::pair{"LayerNorm.weight", "LayerNorm.gamma"},
                                     std::pair{"LayerNorm.bias", "LayerNorm.beta"}})
        if (then.ends_with(now))
          then.replace(then.size() - std::string_view(now).size(), std::string::npos, old);
      if (then == name) continue;
      tensors.erase(name);
      tensors[then] = tensor;
    }
    fs::copy_file(kHfModels / "bert_masked_lm" / "config.json", folder / "config.json",
                  fs::copy_options::overwrite_existing);
    write_tensors(folder / "model.safetensors", tensors);
    EXPECT_NO_THROW(open_hf_model(folder)) << prefix;
  }
  for (const auto& [model, prefix, missing] :
       {std::tuple{"llama", "lm_head.", "lm_head.weight"},
        {"bert_masked_lm", "cls.", "cls.predictions.bias"},
        {"t5", "decoder.", "decoder.final_layer_norm.weight"},
        {"t5", "encoder.", "encoder.block.0.layer.0.SelfAttention.q.weight"}})
    EXPECT_THAT(error_of([&] { without(model, prefix); }),
                HasSubstr(std::string(missing) + " is missing"))
        << model << " without " << prefix;
}

TEST_F(HfImport, TiesOnlyWhatIsEqual) {
  for (const char* name : {"llama3_rope_scaling_tied", "gpt2", "bert_masked_lm", "t5"}) {
    const bool bert = std::string_view(name) == "bert_masked_lm",
               t5 = std::string_view(name) == "t5", gpt2 = std::string_view(name) == "gpt2";
    const std::string output = bert ? "cls.predictions.decoder.weight" : "lm_head.weight";
    const std::string words = bert   ? "bert.embeddings.word_embeddings.weight"
                              : t5   ? "shared.weight"
                              : gpt2 ? "transformer.wte.weight"
                                     : "model.embed_tokens.weight";
    fs::copy_file(kHfModels / name / "config.json", folder / "config.json",
                  fs::copy_options::overwrite_existing);
    auto tensors = weights_of(name);
    const auto untied = [&] {
      write_tensors(folder / "model.safetensors", tensors);
      return open_hf_model(folder)->config().untie_embeddings_and_output_weights;
    };
    EXPECT_FALSE(untied()) << name;
    tensors[output] = tensors.at(words).clone();
    EXPECT_FALSE(untied()) << name;
    tensors[output][3][1] += 1;
    EXPECT_TRUE(untied()) << name;
  }
}

TEST_F(HfImport, ASecondCopyHasToBeEqual) {
  struct Copy {
    const char *model, *copy, *original;
  };
  for (const auto& [model, copy, original] :
       {Copy{"bert_masked_lm", "cls.predictions.decoder.bias", "cls.predictions.bias"},
        Copy{"roberta_masked_lm", "lm_head.decoder.bias", "lm_head.bias"},
        Copy{"t5", "encoder.embed_tokens.weight", "shared.weight"},
        Copy{"t5_untied", "decoder.embed_tokens.weight", "shared.weight"}}) {
    SCOPED_TRACE(std::string(model) + ": " + copy);
    fs::copy_file(kHfModels / model / "config.json", folder / "config.json",
                  fs::copy_options::overwrite_existing);
    auto tensors = weights_of(model);
    const auto open = [&] {
      write_tensors(folder / "model.safetensors", tensors);
      return open_hf_model(folder);
    };
    tensors[copy] = tensors.at(original).clone();
    EXPECT_NO_THROW(open());
    tensors[copy].flatten()[3] += 1;
    EXPECT_THAT(error_of(open), HasSubstr(fmt::format("{} is not equal to {}", copy, original)));
    tensors[copy] = tensors.at(original).to(at::kHalf);
    EXPECT_THAT(error_of(open), HasSubstr(copy));
  }
}

TEST_F(HfImport, WeightsComeBackAsTheyWere) {
  for (const char* name : {"gpt2", "llama", "llama3_rope_scaling_tied", "qwen2", "qwen3"}) {
    const HfModel hf = read_hf_config(kHfModels / name);
    parallelize::RankModel model = parallelize::make_model({.config = hf.config,
                                                            .build = {.dtype = at::kDouble},
                                                            .max_sequence = 8,
                                                            .gradients = false},
                                                           {});
    open_hf_model(kHfModels / name, hf)->load(model.model->params());
    const auto out =
        hf_tensors(hf, model.model->params(), [](const nn::Param& p) { return p.value(); });
    const auto in = weights_of(name);
    for (const auto& [key, tensor] : out) {
      const auto original = in.contains(key) ? in.at(key) : in.at(key.substr(key.find('.') + 1));
      EXPECT_TRUE(at::equal(tensor, original.to(at::kDouble))) << name << " " << key;
    }
  }
}

} // namespace
} // namespace pentatron::checkpoint
