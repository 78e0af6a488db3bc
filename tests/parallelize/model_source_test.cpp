// Models in files of every kind: what is known of them, their parameters in every layout, and what
// is refused.
#include <ATen/ATen.h>

#include <filesystem>
#include <fstream>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "pentatron/base/json.h"
#include "pentatron/base/safetensors.h"
#include "pentatron/checkpoint/convert.h"
#include "pentatron/checkpoint/hf/hf_weights.h"
#include "pentatron/checkpoint/hf/weight_map.h"
#include "pentatron/checkpoint/model_source.h"
#include "pentatron/checkpoint/tensor_io.h"
#include "pentatron/models/presets.h"
#include "pentatron/parallelize/parallelize.h"
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

const fs::path kSourceModels = fs::path(PENTATRON_TEST_DATA) / "hf_tiny";

parallelize::RankModel build_model(const models::ModelConfig& config, at::ScalarType dtype) {
  return parallelize::make_model(
      {.config = config, .build = {.dtype = dtype}, .max_sequence = 8, .gradients = false}, {});
}

class ModelSources : public testing::Test {
 protected:
  void copy(const char* model) {
    for (const char* file : {"config.json", "model.safetensors"})
      fs::copy_file(kSourceModels / model / file, folder / file,
                    fs::copy_options::overwrite_existing);
  }
  void write(const std::string& name, const std::string& text) {
    std::ofstream(folder / name) << text;
  }
  std::string open_error() {
    return error_of([&] { open_model(folder.string()); });
  }
  const TemporaryFolder temporary;
  const fs::path folder = temporary.path();
};

TEST(WeightMap, EntriesTileTheirParameters) {
  for (const char* name : {"deepseek_v3", "deepseek_v3_yarn", "gemma2", "gemma3_text", "glm4",
                           "gpt2", "gpt_oss", "llama", "llama3_rope_scaling_tied", "mixtral",
                           "olmo2", "olmoe", "phi3", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe"}) {
    const HfModel hf = read_hf_config(kSourceModels / name);
    const parallelize::RankModel model = build_model(hf.config, at::kFloat);
    for (const HfNames kind : {HfNames::kFiles, HfNames::kParameters, HfNames::kStacks}) {
      std::map<std::string, at::Tensor> covered;
      for (const nn::Param& param : model.model->params())
        covered[param.name()] = at::zeros(param.spec().shape, at::kByte);
      for (const WeightMapEntry& entry : weight_map(hf, kind)) {
        if (entry.buffer) continue; // no parameter
        at::Tensor block = covered.at(entry.param);
        for (size_t d = 0; d < entry.shape.size(); ++d)
          block = block.narrow(static_cast<int64_t>(d), entry.origin[d], entry.shape[d]);
        block.add_(1);
      }
      for (const auto& [param, count] : covered)
        EXPECT_TRUE(count.eq(1).all().item<bool>()) << name << " " << param;
    }
  }
}

TEST_F(ModelSources, TellWhatTheModelIs) {
  copy("llama");
  write("generation_config.json", R"({"eos_token_id": [3, 5], "bos_token_id": 1, "temperature": 0.5,
            "repetition_penalty": 1.0, "no_repeat_ngram_size": 3, "min_new_tokens": null,
            "suppress_tokens": [], "num_beams": 1, "bad_words_ids": [[1, 2]],
            "forced_decoder_ids": [], "sequence_bias": {}})");
  write("tokenizer.json", "{}");
  const auto source = open_model(folder.string());
  EXPECT_EQ(source->format(), ModelFormat::kHuggingFace);
  EXPECT_EQ(source->facts().family, "llama");
  EXPECT_EQ(source->dtype(), SafeDtype::kF32);
  EXPECT_EQ(source->facts().context, source->config().max_position_embeddings);
  EXPECT_THAT(source->facts().generation.eos, ElementsAre(3, 5));
  EXPECT_EQ(source->facts().generation.bos, 1);
  EXPECT_THAT(source->facts().generation.unused,
              ElementsAre("no_repeat_ngram_size=3", "bad_words_ids=[[1,2]]"));
  EXPECT_EQ(source->facts().tokenizer.kind, TokenizerPlace::Kind::kFiles);
  EXPECT_EQ(source->facts().tokenizer.path, folder);
  EXPECT_THAT(source->facts().companions,
              ElementsAre(folder / "config.json", folder / "generation_config.json",
                          folder / "tokenizer.json"));
  EXPECT_EQ(open_model("hf:" + folder.string())->format(), ModelFormat::kHuggingFace);
}

/// Rank `rank` of `size` tensor ranks of every parameter of a model.
void check_tensor_rank(ModelSource& source, at::ScalarType dtype, int rank, int size) {
  const parallelize::RankModel model = build_model(source.config(), dtype);
  nn::ParamList whole, part;
  for (const nn::Param& param : model.model->params()) {
    nn::Param& all = whole.add(param.spec(), nn::Init::constant(0), dtype, {});
    all.set_value(at::full(all.shape(), 7, at::TensorOptions(dtype)));
    nn::Param& mine = part.add(param.spec(), nn::Init::constant(0), dtype, {{"tp", {rank, size}}});
    mine.set_value(at::full(mine.shape(), 7, at::TensorOptions(dtype)));
  }
  source.load(whole);
  source.load(part);
  for (nn::Param& param : part) {
    const at::Tensor loaded = param.value().clone();
    nn::load_global(param, whole.find(param.name()).value().narrow(0, 0, param.spec().shape.at(0)));
    EXPECT_TRUE(at::equal(loaded, param.value())) << param.name() << " of rank " << rank;
  }
}

TEST_F(ModelSources, FillTensorRanksWithTheirPart) {
  for (const char* name : {"glm4", "gpt2", "gpt_oss", "gpt_oss_mxfp4", "llama",
                           "llama3_rope_scaling_tied", "olmo2", "phi3", "qwen2", "qwen3"}) {
    const auto source = open_model((kSourceModels / name).string());
    for (int rank = 0; rank < 2; ++rank) check_tensor_rank(*source, at::kFloat, rank, 2);
    check_tensor_rank(*source, at::kBFloat16, 1, 2);
  }
}

TEST_F(ModelSources, FillTensorRanksFromACheckpoint) {
  const auto llama = open_model((kSourceModels / "llama").string());
  convert_model(*llama, folder / "ours",
                {.format = ModelFormat::kPentatron, .config_yaml = test::yaml_of(llama->config())});
  const auto source = open_model((folder / "ours").string());
  EXPECT_EQ(source->format(), ModelFormat::kPentatron);
  EXPECT_EQ(source->facts().tokenizer.kind, TokenizerPlace::Kind::kConfig);
  for (int rank = 0; rank < 2; ++rank) {
    check_tensor_rank(*source, at::kFloat, rank, 2);
    check_tensor_rank(*source, at::kBFloat16, rank, 2);
  }
}

TEST_F(ModelSources, TakeHalfPrecisionAndMixedTypes) {
  copy("llama");
  std::map<std::string, at::Tensor> tensors;
  const SafetensorsFile file(kSourceModels / "llama/model.safetensors");
  for (const auto& [name, entry] : file.tensors()) {
    const bool bf16 = name.find("k_proj") != std::string::npos;
    tensors[name] = to_tensor(entry).to(bf16 ? at::kBFloat16 : at::kHalf);
  }
  write_tensors(folder / "model.safetensors", tensors);
  const auto source = open_model(folder.string());
  EXPECT_EQ(source->dtype(), SafeDtype::kF16);
  EXPECT_EQ(source->facts().hf["dtypes"]["model.layers.0.self_attn.k_proj.weight"], "BF16");
  parallelize::RankModel model = build_model(source->config(), at::kFloat);
  source->load(model.model->params());
  const HfModel hf = read_hf_config(folder);
  for (const auto& [name, tensor] :
       hf_tensors(hf, model.model->params(), [](const nn::Param& p) { return p.value(); }))
    EXPECT_TRUE(at::equal(tensor, tensors.at(name).to(at::kFloat))) << name;
}

TEST_F(ModelSources, ListEveryTensorThatDoesNotFitInOneError) {
  copy("llama");
  std::map<std::string, at::Tensor> tensors;
  const SafetensorsFile file(kSourceModels / "llama/model.safetensors");
  for (const auto& [name, entry] : file.tensors()) tensors[name] = to_tensor(entry);
  tensors.erase("model.norm.weight");
  tensors.erase("model.layers.1.mlp.up_proj.weight");
  tensors["extra"] = at::zeros({2});
  tensors["another"] = at::zeros({2});
  tensors["model.embed_tokens.weight"] = at::zeros({1, 2});
  tensors["model.layers.0.input_layernorm.weight"] =
      at::zeros_like(tensors["model.layers.0.input_layernorm.weight"], at::kLong);
  write_tensors(folder / "model.safetensors", tensors);
  EXPECT_THAT(open_error(),
              AllOf(HasSubstr("model.norm.weight is missing"), HasSubstr("6 problems"),
                    HasSubstr("model.layers.1.mlp.up_proj.weight is missing"),
                    HasSubstr("extra is not part"), HasSubstr("another is not part"),
                    HasSubstr("model.embed_tokens.weight has shape [1, 2] instead of"),
                    HasSubstr("model.layers.0.input_layernorm.weight is of type I64")));
}

TEST_F(ModelSources, RefuseWhatIsNoModel) {
  EXPECT_THAT(open_error(), HasSubstr("contains no model"));
  EXPECT_THAT(error_of([&] { open_model((folder / "nowhere").string()); }),
              HasSubstr("nowhere does not exist"));
  copy("llama");
  fs::rename(folder / "model.safetensors", folder / "pytorch_model.bin");
  EXPECT_THAT(open_error(), AllOf(HasSubstr("pytorch_model.bin, which contains pickled objects"),
                                  HasSubstr("try:")));
  const auto error = [&](const char* name) {
    write(name, "text");
    return error_of([&] { open_model((folder / name).string()); });
  };
  EXPECT_THAT(error("model.bin"), HasSubstr("pickled"));
  EXPECT_THAT(error("model.safetensors"), HasSubstr("try: the folder that contains it"));
  EXPECT_THAT(error("model.gguf"), HasSubstr("is a file, but not a GGUF file"));
}

} // namespace
} // namespace pentatron::checkpoint
