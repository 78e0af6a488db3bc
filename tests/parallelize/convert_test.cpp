// Models from one format to another and back: bytes, types, names and files.
#include <ATen/ATen.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "pentatron/base/json.h"
#include "pentatron/base/safetensors.h"
#include "pentatron/checkpoint/convert.h"
#include "pentatron/checkpoint/hf/hf_export.h"
#include "pentatron/checkpoint/model_stream.h"
#include "pentatron/checkpoint/sharded/verify.h"
#include "pentatron/checkpoint/tensor_io.h"
#include "pentatron/checkpoint/without_mtp.h"
#include "pentatron/config/config.h"
#include "pentatron/models/presets.h"
#include "pentatron/parallelize/load_model.h"
#include "tests/parallelize/saved_config.h"
#include "tests/support/files.h"
#include "tests/support/ranks.h"

namespace pentatron::checkpoint {
namespace {

namespace fs = std::filesystem;
using test::error_of;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const fs::path kModels = fs::path(PENTATRON_TEST_DATA) / "hf_tiny";
constexpr const char* kAll[] = {"gpt2",
                                "llama",
                                "llama3_rope_scaling_tied",
                                "mistral_sliding_window",
                                "qwen2",
                                "qwen3",
                                "olmo2",
                                "phi3",
                                "glm4",
                                "mixtral",
                                "qwen3_moe",
                                "gpt_oss",
                                "deepseek_v3"};

/// Those that GGUF has no place for; of olmoe and qwen2_moe for what these models have beside the
/// usual.
constexpr const char* kNotInGguf[] = {"bert",
                                      "bert_masked_lm",
                                      "bert_regression",
                                      "bert_model",
                                      "t5",
                                      "roberta_masked_lm",
                                      "roberta_model",
                                      "roberta_classification",
                                      "t5_untied",
                                      "t5_v1_1_gated",
                                      "t5_untied_unscaled",
                                      "t5_generation",
                                      "t5_reglu",
                                      "llama_dynamic",
                                      "phi3_longrope",
                                      "gemma3_text_scaled",
                                      "olmoe",
                                      "qwen2_moe",
                                      "deepseek_v3_yarn",
                                      "deepseek_v3_mtp",
                                      "deepseek_v3_mtp_tied"};

std::vector<std::string> with_others() {
  std::vector<std::string> names(std::begin(kAll), std::end(kAll));
  names.insert(names.end(), std::begin(kNotInGguf), std::end(kNotInGguf));
  return names;
}

class Convert : public testing::Test {
 protected:
  ConvertReport convert(const fs::path& source, const std::string& target, ModelFormat format,
                        ConvertOptions options = {}) {
    options.format = format;
    const auto model = open_model(source.string());
    options.config_yaml = test::yaml_of(model->config());
    return convert_model(*model, folder / target, options);
  }
  std::string convert_error(const fs::path& source, const std::string& target, ModelFormat format,
                            const ConvertOptions& options = {}) {
    return error_of([&] { convert(source, target, format, options); });
  }
  /// A copy of a model with tokenizer files, and bf16 weights where asked for.
  fs::path decorated(const std::string& model, at::ScalarType type) {
    const fs::path copy = folder / "decorated";
    fs::create_directories(copy);
    fs::copy_file(kModels / model / "config.json", copy / "config.json");
    std::map<std::string, at::Tensor> tensors;
    const SafetensorsFile file(kModels / model / "model.safetensors");
    for (const auto& [name, entry] : file.tensors()) tensors[name] = to_tensor(entry).to(type);
    write_tensors(copy / "model.safetensors", tensors);
    for (const char* name : {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja",
                             "generation_config.json"})
      std::ofstream(copy / name) << "{\"eos_token_id\": 7, \"of\": \"" << name << "\"}";
    return copy;
  }
  const TemporaryFolder temporary;
  const fs::path folder = temporary.path();
};

/// Every tensor of `before` is in `after` with the same type, shape and bytes, and nothing else is.
void expect_same_tensors(const fs::path& before, const fs::path& after) {
  const SafetensorsFolder a(before), b(after);
  EXPECT_EQ(a.tensors().size(), b.tensors().size());
  for (const auto& [name, tensor] : a.tensors()) {
    const SafeTensor* const other = b.find(name);
    ASSERT_NE(other, nullptr) << name;
    EXPECT_EQ(tensor.dtype, other->dtype) << name;
    EXPECT_EQ(tensor.shape, other->shape) << name;
    EXPECT_TRUE(std::ranges::equal(tensor.data, other->data)) << name;
  }
}

/// transformers writes one with add_pooling_layer=False; config.json is the same as with it.
TEST_F(Convert, AnEncoderMayLackThePooler) {
  for (const char* name : {"bert_model", "roberta_model"}) {
    const fs::path source = decorated(name, at::kFloat);
    std::map<std::string, at::Tensor> tensors;
    const SafetensorsFile file(source / "model.safetensors");
    for (const auto& [tensor, entry] : file.tensors())
      if (!tensor.starts_with("pooler.")) tensors[tensor] = to_tensor(entry).clone();
    EXPECT_EQ(tensors.size() + 2, file.tensors().size());
    write_tensors(source / "model.safetensors", tensors);
    EXPECT_FALSE(open_model(source.string())->config().pooler);
    convert(source, name, ModelFormat::kPentatron);
    convert(folder / name, std::string(name) + "_back", ModelFormat::kHuggingFace);
    expect_same_tensors(source, folder / (std::string(name) + "_back"));
    fs::remove_all(source);
  }
}

TEST_F(Convert, LayersOfMultiTokenPredictionAreThoseOfTheFiles) {
  const auto tensors_of = [](const fs::path& model) {
    const SafetensorsFile file(model / "model.safetensors");
    std::map<std::string, at::Tensor> tensors;
    for (const auto& [name, entry] : file.tensors()) tensors[name] = to_tensor(entry).clone();
    return tensors;
  };
  const auto depths = [](const fs::path& model) {
    return open_model(model.string())->config().mtp_num_layers;
  };
  EXPECT_EQ(depths(kModels / "deepseek_v3"), 0) << "whatever config.json says";
  EXPECT_EQ(depths(kModels / "deepseek_v3_mtp"), 2);
  EXPECT_EQ(depths(kModels / "deepseek_v3_mtp_tied"), 1);
  const fs::path source = decorated("deepseek_v3_mtp", at::kFloat);
  std::map<std::string, at::Tensor> tensors = tensors_of(source);

  // Files may lack the copies of embedding and output layer.
  const auto whole = tensors;
  std::erase_if(tensors, [](const auto& t) {
    return t.first.ends_with("embed_tokens.weight") && t.first != "model.embed_tokens.weight";
  });
  std::erase_if(tensors,
                [](const auto& t) { return t.first.ends_with("shared_head.head.weight"); });
  EXPECT_EQ(tensors.size() + 4, whole.size());
  write_tensors(source / "model.safetensors", tensors);
  convert(source, "ours", ModelFormat::kPentatron);
  convert(folder / "ours", "back", ModelFormat::kHuggingFace);
  expect_same_tensors(source, folder / "back");

  // A copy that differs would be another model.
  tensors["model.layers.3.shared_head.head.weight"] = at::ones({67, 24});
  write_tensors(source / "model.safetensors", tensors);
  EXPECT_THAT(convert_error(source, "other", ModelFormat::kPentatron),
              HasSubstr("model.layers.3.shared_head.head.weight is not equal to lm_head.weight"));
  tensors = whole;
  tensors.erase("model.layers.2.hnorm.weight");
  write_tensors(source / "model.safetensors", tensors);
  EXPECT_THAT(convert_error(source, "other", ModelFormat::kPentatron),
              HasSubstr("model.layers.2.hnorm.weight is missing"));

  // Fewer than config.json says: it is corrected.
  tensors = whole;
  std::erase_if(tensors, [](const auto& t) { return t.first.starts_with("model.layers.3."); });
  write_tensors(source / "model.safetensors", tensors);
  convert(source, "one", ModelFormat::kHuggingFace);
  EXPECT_EQ(read_json(folder / "one/config.json")["num_nextn_predict_layers"], 1);
  EXPECT_EQ(depths(folder / "one"), 1);

  // A tensor behind the last layer is of such a layer, one before it is not.
  tensors = whole;
  tensors["model.layers.1.eh_proj.weight"] = at::ones({24, 48});
  write_tensors(source / "model.safetensors", tensors);
  EXPECT_THAT(convert_error(source, "other", ModelFormat::kPentatron),
              HasSubstr("model.layers.1.eh_proj.weight is not part of the model"));
}

TEST_F(Convert, LayersOfMultiTokenPredictionMayBeLeftOut) {
  const auto source = open_model((kModels / "deepseek_v3_mtp").string());
  const auto plain = without_mtp(*source);
  EXPECT_EQ(plain->config().mtp_num_layers, 0);
  convert_model(*plain, folder / "plain", {.format = ModelFormat::kHuggingFace});
  EXPECT_EQ(read_json(folder / "plain/config.json")["num_nextn_predict_layers"], 0);
  const SafetensorsFile file(folder / "plain/model.safetensors"),
      whole(kModels / "deepseek_v3_mtp/model.safetensors");
  for (const auto& [name, entry] : whole.tensors())
    EXPECT_EQ(file.find(name) == nullptr,
              name.starts_with("model.layers.2.") || name.starts_with("model.layers.3."))
        << name;
  // A family without such layers, and the way out.
  models::ModelConfig c = models::preset("llama3_8b");
  c.mtp_num_layers = 1;
  EXPECT_THAT(error_of([&] { make_hf_config(c); }), HasSubstr("model.mtp_num_layers=1"));
  EXPECT_NO_THROW(make_hf_config(c.without_mtp()));
}

TEST_F(Convert, HuggingFaceToPentatronAndBackKeepsEveryByte) {
  for (const std::string& name : with_others()) {
    convert(kModels / name, "ours", ModelFormat::kPentatron);
    EXPECT_TRUE(verify(folder / "ours/step_00000000").ok());
    const ConvertReport report = convert(folder / "ours", "back", ModelFormat::kHuggingFace);
    EXPECT_EQ(report.files, 1u);
    expect_same_tensors(kModels / name, folder / "back");
    EXPECT_EQ(content_of(folder / "back/config.json"), content_of(kModels / name / "config.json"));
    fs::remove_all(folder / "ours");
    fs::remove_all(folder / "back");
  }
}

TEST(HfConfig, IsMadeOfTheDefaultsOfEveryTypeAndOfEveryPreset) {
  for (const models::ModelType type : {models::ModelType::kBert, models::ModelType::kT5})
    EXPECT_NO_THROW(make_hf_config(models::ModelConfig::default_of(type)));
  for (const std::string& name : models::preset_names())
    EXPECT_NO_THROW(make_hf_config(models::preset(name))) << name;
}

TEST_F(Convert, ShardsAreCutBySizeAndReadAgain) {
  for (const char* name : {"gpt2", "qwen3"}) {
    const ConvertReport sharded =
        convert(kModels / name, "sharded", ModelFormat::kHuggingFace, {.max_shard_bytes = 30'000});
    EXPECT_GT(sharded.files, 3u);
    const Json index = read_json(folder / "sharded/model.safetensors.index.json");
    EXPECT_EQ(index["metadata"]["total_size"], sharded.bytes);
    expect_same_tensors(kModels / name, folder / "sharded");
    const ConvertReport ours =
        convert(folder / "sharded", "ours", ModelFormat::kPentatron, {.max_shard_bytes = 30'000});
    EXPECT_GT(ours.files, 3u);
    EXPECT_TRUE(verify(folder / "ours/step_00000000").ok());
    convert(folder / "ours", "back", ModelFormat::kHuggingFace);
    expect_same_tensors(kModels / name, folder / "back");
    for (const char* made : {"sharded", "ours", "back"}) fs::remove_all(folder / made);
  }
}

TEST_F(Convert, TypesAndFilesOfTheTokenizerAreCarried) {
  const fs::path source = decorated("qwen2", at::kBFloat16);
  convert(source, "ours", ModelFormat::kPentatron);
  const auto ours = open_model((folder / "ours").string());
  EXPECT_EQ(ours->dtype(), SafeDtype::kBF16);
  EXPECT_EQ(ours->facts().tokenizer.kind, TokenizerPlace::Kind::kFiles);
  EXPECT_THAT(ours->facts().generation.eos, ElementsAre(7));
  EXPECT_EQ(ours->facts().family, "qwen2");
  convert(folder / "ours", "back", ModelFormat::kHuggingFace);
  expect_same_tensors(source, folder / "back");
  for (const auto& entry : fs::directory_iterator(source)) {
    const fs::path name = entry.path().filename();
    if (name != "model.safetensors") {
      EXPECT_EQ(content_of(entry.path()), content_of(folder / "back" / name)) << name;
    }
  }
}

TEST_F(Convert, PartsOfOneParameterMayHaveDifferentTypes) {
  const fs::path source = decorated("llama", at::kHalf);
  std::map<std::string, at::Tensor> tensors;
  {
    const SafetensorsFile file(source / "model.safetensors");
    for (const auto& [name, entry] : file.tensors())
      tensors[name] = to_tensor(entry).to(name.find("up_proj") != std::string::npos ? at::kBFloat16
                                                                                    : at::kHalf);
  }
  write_tensors(source / "model.safetensors", tensors);
  convert(source, "ours", ModelFormat::kPentatron);
  convert(folder / "ours", "back", ModelFormat::kHuggingFace);
  expect_same_tensors(source, folder / "back");
}

TEST_F(Convert, TakesAnotherTypeAndRefusesWhatItCannotHold) {
  convert(kModels / "llama", "bf16", ModelFormat::kHuggingFace, {.dtype = "bf16"});
  const SafetensorsFolder before(kModels / "llama"), after(folder / "bf16");
  for (const auto& [name, tensor] : after.tensors()) {
    EXPECT_EQ(tensor.dtype, SafeDtype::kBF16);
    EXPECT_TRUE(at::equal(to_tensor(tensor), to_tensor(before.at(name)).to(at::kBFloat16))) << name;
  }
  const Json config = read_json(folder / "bf16/config.json");
  EXPECT_EQ(config.value("dtype", config.value("torch_dtype", "")), "bfloat16");

  const fs::path source = decorated("llama", at::kFloat);
  std::map<std::string, at::Tensor> tensors;
  {
    const SafetensorsFile file(source / "model.safetensors");
    for (const auto& [name, entry] : file.tensors()) tensors[name] = to_tensor(entry).clone();
  }
  tensors["model.norm.weight"].fill_(1e5);
  write_tensors(source / "model.safetensors", tensors);
  EXPECT_THAT(convert_error(source, "fp16", ModelFormat::kHuggingFace, {.dtype = "fp16"}),
              AllOf(HasSubstr("final_norm.weight"), HasSubstr("try: --dtype bf16")));
  EXPECT_FALSE(fs::exists(folder / "fp16"));
  tensors["model.norm.weight"].fill_(std::numeric_limits<float>::infinity()); // was so before
  write_tensors(source / "model.safetensors", tensors);
  convert(source, "fp16", ModelFormat::kHuggingFace, {.dtype = "fp16"});
  EXPECT_THAT(convert_error(source, "x", ModelFormat::kHuggingFace, {.dtype = "q8_0"}),
              HasSubstr("only with --format gguf"));
}

TEST_F(Convert, GgufInFullPrecisionKeepsEveryValue) {
  for (const char* name : kAll) {
    convert(kModels / name, "model.gguf", ModelFormat::kGguf);
    EXPECT_EQ(recognise_model(folder / "model.gguf"), ModelFormat::kGguf);
    convert(folder / "model.gguf", "back", ModelFormat::kHuggingFace);
    const SafetensorsFolder before(kModels / name), after(folder / "back");
    for (const auto& [key, tensor] : after.tensors())
      EXPECT_TRUE(at::equal(to_tensor(tensor), to_tensor(before.at(key)))) << name << " " << key;
    EXPECT_TRUE(
        same_model(read_hf_config(folder / "back").config, read_hf_config(kModels / name).config))
        << name;
    fs::remove_all(folder / "back");
    fs::remove(folder / "model.gguf");
  }
}

/// Gemma's norms are stored plus 1, and how its attention is scaled is not stored.
TEST_F(Convert, GgufOfGemmaIsTheSameModel) {
  for (const char* name : {"gemma2", "gemma3_text"}) {
    const fs::path source = folder / "source";
    fs::create_directories(source);
    Json config = read_json(kModels / name / "config.json");
    config["query_pre_attn_scalar"] = config["head_dim"];
    std::ofstream(source / "config.json") << dump_json(config);
    fs::copy_file(kModels / name / "model.safetensors", source / "model.safetensors");
    convert(source, "model.gguf", ModelFormat::kGguf);
    convert(folder / "model.gguf", "back", ModelFormat::kHuggingFace);
    const SafetensorsFolder before(source), after(folder / "back");
    EXPECT_EQ(before.tensors().size(), after.tensors().size());
    for (const auto& [key, entry] : after.tensors()) {
      const at::Tensor given = to_tensor(before.at(key)), got = to_tensor(entry);
      EXPECT_TRUE(at::equal(got, key.ends_with("norm.weight") ? (given + 1) - 1 : given)) << key;
    }
    EXPECT_TRUE(same_model(read_hf_config(folder / "back").config, read_hf_config(source).config))
        << name;
    for (const char* made : {"source", "back", "model.gguf"}) fs::remove_all(folder / made);
  }
}

/// A config.json of GPT-OSS without rope_scaling means YaRN, a GGUF file without it does not.
TEST_F(Convert, GgufOfGptOssWithoutYarnIsTheSameModel) {
  const fs::path source = folder / "source";
  fs::create_directories(source);
  Json config = read_json(kModels / "gpt_oss/config.json");
  for (const char* key : {"rope_scaling", "rope_parameters"}) config.erase(key);
  config["rope_theta"] = 10000.0;
  config["rope_scaling"] = {{"rope_type", "default"}};
  std::ofstream(source / "config.json") << dump_json(config);
  fs::copy_file(kModels / "gpt_oss/model.safetensors", source / "model.safetensors");
  convert(source, "model.gguf", ModelFormat::kGguf);
  convert(folder / "model.gguf", "back", ModelFormat::kHuggingFace);
  const models::ModelConfig back = read_hf_config(folder / "back").config;
  EXPECT_EQ(back.rope_scaling.type, models::RopeScalingType::kNone);
  EXPECT_TRUE(same_model(back, read_hf_config(source).config));
}

TEST_F(Convert, NothingThatIsThereIsLost) {
  convert(kModels / "llama", "there", ModelFormat::kHuggingFace);
  EXPECT_THAT(convert_error(kModels / "qwen2", "there", ModelFormat::kHuggingFace),
              AllOf(HasSubstr("exists"), HasSubstr("try:")));
  expect_same_tensors(kModels / "llama", folder / "there");
  convert(kModels / "qwen2", "there", ModelFormat::kHuggingFace, {.overwrite = true});
  expect_same_tensors(kModels / "qwen2", folder / "there");
  fs::create_directories(folder / "mine");
  std::ofstream(folder / "mine/letter.txt") << "text";
  EXPECT_THAT(
      convert_error(kModels / "llama", "mine", ModelFormat::kHuggingFace, {.overwrite = true}),
      HasSubstr("is not a model"));
  EXPECT_THAT(
      convert_error(folder / "there", "there", ModelFormat::kPentatron, {.overwrite = true}),
      HasSubstr("contains the source"));
  EXPECT_THAT(convert_error(folder / "there", ".", ModelFormat::kPentatron, {.overwrite = true}),
              HasSubstr("contains the source"));
  EXPECT_EQ(content_of(folder / "mine/letter.txt"), "text");
  for (const auto& entry : fs::directory_iterator(folder))
    EXPECT_EQ(entry.path().string().find(".tmp"), std::string::npos) << entry.path();
}

TEST(HfExport, ConfigsOfEveryFamilyComeBack) {
  for (const std::string& name : with_others()) {
    const HfModel model = read_hf_config(kModels / name);
    const HfExport made = make_hf_config(model.config, model.family);
    EXPECT_EQ(made.family, model.family);
    const HfModel again = parse_hf_config(made.config, name);
    EXPECT_TRUE(same_model(again.config, model.config)) << name;
    EXPECT_EQ(again.config.attention_dropout, model.config.attention_dropout);
    EXPECT_EQ(again.config.init_method_std, model.config.init_method_std);
  }
}

TEST(HfExport, FindsTheFamilyThatHasTheModel) {
  const auto family = [](models::ModelConfig c, const std::string& preferred = {}) {
    return make_hf_config(c, preferred).family;
  };
  models::ModelConfig c;
  EXPECT_EQ(family(c), "llama");
  EXPECT_EQ(family(c, "mistral"), "mistral");
  EXPECT_EQ(family(c, "gpt2"), "llama"); // cannot be
  c.window_size = 16;
  EXPECT_EQ(family(c), "mistral");
  c.full_attention_layers = {1};
  c.add_qkv_bias = true;
  EXPECT_EQ(family(c), "qwen2");
  c.full_attention_layers = {0, 1, 2, 3};
  c.add_attention_proj_bias = true;
  EXPECT_EQ(family(c), "llama"); // no layer has a window
  c.qk_layernorm = true;
  EXPECT_EQ(family(c), "qwen3");
  for (const auto scaling : {models::RopeScalingType::kLinear, models::RopeScalingType::kLlama3,
                             models::RopeScalingType::kYarn}) {
    c.rope_scaling = {.type = scaling, .factor = 4, .attention_factor = 1.25};
    EXPECT_EQ(family(c), "qwen3");
  }
}

/// transformers makes the mask of the window, whether a layer has one or not.
TEST(HfExport, GptOssHasAWindowInItsFilesEvenIfNoLayerHas) {
  models::ModelConfig c = models::preset("gpt_oss_20b");
  c.window_size.reset();
  c.full_attention_layers.clear();
  const HfExport made = make_hf_config(c);
  EXPECT_EQ(made.family, "gpt_oss");
  EXPECT_TRUE(made.config["sliding_window"].is_number_integer());
  EXPECT_TRUE(same_model(parse_hf_config(made.config, "config.json").config, c));
}

TEST(HfExport, NamesTheKeysThatNoFamilyHas) {
  const models::ModelConfig c{.rotary_interleaved = true, .layernorm_zero_centered_gamma = true};
  EXPECT_THAT(error_of([&] { make_hf_config(c); }),
              AllOf(HasSubstr("model.rotary_interleaved=true"),
                    HasSubstr("model.layernorm_zero_centered_gamma=true")));
}

TEST(ModelStream, FilesHoldNeighboursUpToTheirSize) {
  using Groups = std::vector<std::vector<size_t>>;
  EXPECT_EQ(group_by_size({}, 10), Groups{});
  EXPECT_EQ(group_by_size({4, 4, 4}, 10), (Groups{{0, 1}, {2}}));
  EXPECT_EQ(group_by_size({20, 1, 9, 1}, 10), (Groups{{0}, {1, 2}, {3}}));
}

TEST_F(Convert, ACheckpointIsLentToRanksThatNeedItAsItIs) {
  convert(kModels / "gpt2", "lent", ModelFormat::kPentatron);
  const auto lending = open_model((folder / "lent").string());
  const auto copying = open_model((folder / "lent").string());
  int lending_calls = 0, copying_calls = 0;
  lending->on_progress([&] { ++lending_calls; });
  copying->on_progress([&] { ++copying_calls; });
  const auto options = [&](at::ScalarType dtype, bool gradients) {
    return parallelize::ModelOptions{.config = lending->config(),
                                     .build = {.dtype = dtype},
                                     .max_sequence = 8,
                                     .gradients = gradients};
  };
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const bool gradients : {false, true}) {
      parallelize::RankModel lent = parallelize::load_model(*lending, options(dtype, gradients));
      parallelize::RankModel copied = parallelize::make_model(options(dtype, gradients), {});
      copying_calls = 0;
      copying->load(copied.model->params());
      EXPECT_GE(copying_calls, static_cast<int>(copied.model->params().size()));
      std::set<std::string> stored;
      for (const auto& range : lent.store->ranges()) stored.insert(range.param->name());
      if (dtype == at::kFloat && !gradients) { // the vocabulary is padded
        EXPECT_THAT(stored, ElementsAre("embedding.word.weight"));
        EXPECT_GT(lending_calls, 1) << "though nearly nothing was copied";
      } else {
        EXPECT_EQ(stored.size(), lent.model->params().size());
      }
      for (const nn::Param& param : lent.model->params())
        EXPECT_TRUE(at::equal(param.value(), copied.model->params().find(param.name()).value()))
            << param.name();
    }
  }
  // Of two tensor ranks too: rows lie in the file as they are needed, columns and the three parts
  // of queries, keys and values do not.
  const parallelize::RankModel whole = parallelize::make_model(options(at::kFloat, false), {});
  nn::ParamList part, expected;
  for (const nn::Param& param : whole.model->params())
    for (nn::ParamList* list : {&part, &expected})
      list->add(param.spec(), nn::Init::constant(0), at::kFloat, {{"tp", {1, 2}}});
  const std::set<const nn::Param*> lent = lending->lend(part);
  const nn::ResidentStore store(expected, at::kCPU, false);
  copying->load(expected);
  std::set<std::string> copied;
  for (const nn::Param& param : part) {
    if (!lent.contains(&param)) {
      copied.insert(param.name());
      continue;
    }
    EXPECT_TRUE(at::equal(param.value(), expected.find(param.name()).value())) << param.name();
  }
  EXPECT_TRUE(copied.contains("layers.0.attention.qkv.weight"));
  EXPECT_TRUE(copied.contains("layers.1.mlp.fc2.weight"));
  EXPECT_FALSE(copied.contains("final_norm.weight"));
  EXPECT_FALSE(copied.contains("layers.1.mlp.fc1.weight"));
}

} // namespace
} // namespace pentatron::checkpoint
