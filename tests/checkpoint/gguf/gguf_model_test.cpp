// Hugging Face's models as GGUF files and back.
#include "pentatron/checkpoint/gguf/gguf_model.h"

#include <cstring>
#include <map>
#include <optional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "pentatron/base/error.h"
#include "pentatron/base/gguf.h"
#include "pentatron/checkpoint/gguf/gguf_export.h"
#include "pentatron/checkpoint/gguf/quants.h"
#include "pentatron/checkpoint/gguf/rope.h"
#include "tests/support/files.h"

namespace pentatron::checkpoint {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

fs::path tiny(const std::string& name) {
  return fs::path(PENTATRON_TEST_DATA) / "hf_tiny" / name;
}

struct HfFolder {
  explicit HfFolder(const std::string& name)
      : config(read_json(tiny(name) / "config.json")), weights(tiny(name)) {
    // What llama.cpp takes for Gemma's, which these models do not have.
    if (config.contains("query_pre_attn_scalar"))
      config["query_pre_attn_scalar"] = config["head_dim"];
    for (const auto& [key, tensor] : weights.tensors()) {
      sources.push_back({key, tensor.shape, tensor.dtype, [&t = tensor](std::span<std::byte> to) {
                           std::memcpy(to.data(), t.data.data(), to.size());
                         }});
    }
  }
  void write(const fs::path& file, GgmlType type = GgmlType::kF32) const {
    write_gguf(file, config, sources, {.type = type, .name = "tiny", .tokenizer = {}});
  }
  bool is_shifted(const std::string& name) const {
    return config["model_type"].get<std::string>().starts_with("gemma") &&
           name.ends_with("norm.weight");
  }
  Json config;
  SafetensorsFolder weights;
  std::vector<GgufSource> sources;
};

std::vector<std::byte> read(const GgufModel& model, const GgufModel::Tensor& tensor) {
  std::vector<std::byte> bytes(tensor.size_bytes());
  model.read(tensor.name, bytes);
  return bytes;
}

std::vector<float> read_floats(const GgufModel& model, const std::string& name) {
  const std::vector<std::byte> bytes = read(model, *model.find(name));
  std::vector<float> out(bytes.size() / sizeof(float));
  std::memcpy(out.data(), bytes.data(), bytes.size());
  return out;
}

class EveryFamily : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Families, EveryFamily,
                         testing::Values("gpt2", "llama", "mistral_sliding_window", "qwen2",
                                         "qwen3", "llama3_rope_scaling_tied", "olmo2", "phi3",
                                         "phi3_longrope", "gemma2", "gemma3_text", "glm4"));

TEST_P(EveryFamily, ComesBackAsItWas) {
  const TemporaryFolder folder;
  const HfFolder hf(GetParam());
  hf.write(folder.path() / "x.gguf");
  const GgufModel model(folder.path() / "x.gguf");
  EXPECT_EQ(model.tensors().size(), hf.weights.tensors().size());
  for (const auto& [name, tensor] : hf.weights.tensors()) {
    const GgufModel::Tensor* found = model.find(name);
    ASSERT_NE(found, nullptr) << name;
    EXPECT_EQ(found->shape, tensor.shape) << name;
    EXPECT_EQ(found->dtype, tensor.dtype) << name;
    if (hf.is_shifted(name)) {
      const std::vector<float> values = read_floats(model, name);
      for (size_t i = 0; i < values.size(); ++i) {
        float given;
        std::memcpy(&given, tensor.data.data() + i * sizeof(float), sizeof(float));
        EXPECT_EQ(values[i], (given + 1.0F) - 1.0F) << name; // the file has it plus 1, in fp32
      }
      continue;
    }
    EXPECT_TRUE(std::ranges::equal(read(model, *found), tensor.data)) << name;
  }
}

TEST_P(EveryFamily, KeepsEveryKeyOfTheConfigurationThatChangesNumbers) {
  const TemporaryFolder folder;
  const HfFolder hf(GetParam());
  hf.write(folder.path() / "x.gguf");
  const Json config = GgufModel(folder.path() / "x.gguf").config();
  for (const char* key : {"model_type",
                          "architectures",
                          "vocab_size",
                          "num_hidden_layers",
                          "hidden_size",
                          "intermediate_size",
                          "num_attention_heads",
                          "num_key_value_heads",
                          "head_dim",
                          "rms_norm_eps",
                          "hidden_act",
                          "max_position_embeddings",
                          "attention_bias",
                          "mlp_bias",
                          "sliding_window",
                          "use_sliding_window",
                          "tie_word_embeddings",
                          "n_layer",
                          "n_embd",
                          "n_head",
                          "n_positions",
                          "activation_function",
                          "layer_norm_epsilon",
                          "hidden_activation",
                          "query_pre_attn_scalar",
                          "attn_logit_softcapping",
                          "final_logit_softcapping",
                          "layer_types"}) {
    const Json given = hf.config.value(key, Json());
    const bool qwen = hf.config["model_type"].get<std::string>().starts_with("qwen");
    if (std::string_view(key) == "layer_types" && qwen) continue; // without a window
    if (!given.is_null()) {
      EXPECT_EQ(config.value(key, Json()), given) << key;
    }
  }
  if (!hf.config.contains("rope_parameters")) return;
  Json rope = hf.config["rope_parameters"];
  if (rope.contains("full_attention")) {
    EXPECT_EQ(config["rope_parameters"], rope);
    rope = rope["full_attention"];
  }
  EXPECT_EQ(config["rope_theta"], rope["rope_theta"]);
  if (rope.contains("partial_rotary_factor")) {
    const int64_t head =
        hf.config.value("head_dim", hf.config["hidden_size"].get<int64_t>() /
                                        hf.config["num_attention_heads"].get<int64_t>());
    const auto rotary = [&](const Json& share) { // what a file has
      return static_cast<int64_t>(static_cast<double>(head) * share.get<double>());
    };
    EXPECT_EQ(rotary(config["partial_rotary_factor"]), rotary(rope["partial_rotary_factor"]));
    rope.erase("partial_rotary_factor");
  }
  rope.erase("rope_theta");
  if (rope["rope_type"] == "default") rope = nullptr;
  EXPECT_EQ(config["rope_scaling"], rope);
}

TEST_P(EveryFamily, IsWithinRoundingInNarrowTypes) {
  const TemporaryFolder folder;
  const HfFolder hf(GetParam());
  const std::pair<GgmlType, double> types[] = {
      {GgmlType::kF16, 0x1p-11}, {GgmlType::kBF16, 0x1p-8}, {GgmlType::kQ8_0, 0.005}};
  for (const auto& [type, relative] : types) {
    hf.write(folder.path() / "x.gguf", type);
    const GgufModel model(folder.path() / "x.gguf");
    for (const GgufModel::Tensor& tensor : model.tensors()) {
      std::vector<std::byte> bytes = read(model, tensor);
      if (tensor.shape.size() == 1) {
        EXPECT_EQ(tensor.dtype, SafeDtype::kF32) << tensor.name;
      }
      std::vector<float> got(bytes.size() / size_of(tensor.dtype));
      const GgmlType stored = tensor.dtype == SafeDtype::kF16    ? GgmlType::kF16
                              : tensor.dtype == SafeDtype::kBF16 ? GgmlType::kBF16
                                                                 : GgmlType::kF32;
      dequantize(stored, bytes, got);
      const SafeTensor& original = hf.weights.at(tensor.name);
      float largest = 0;
      for (size_t i = 0; i < got.size(); ++i) {
        float value;
        std::memcpy(&value, original.data.data() + i * sizeof(float), sizeof(float));
        largest = std::max(largest, std::fabs(value));
        EXPECT_LE(std::fabs(got[i] - value), relative * std::fabs(largest) + 1e-3)
            << tensor.name << " " << i;
      }
    }
  }
}

/// A llama of one layer and head of 4, whose tensors count up from 0.
struct Small {
  GgufMetadata metadata = {
      {"general.architecture", std::string("llama")},   {"llama.block_count", uint32_t{1}},
      {"llama.context_length", uint32_t{16}},           {"llama.embedding_length", uint32_t{4}},
      {"llama.feed_forward_length", uint32_t{3}},       {"llama.attention.head_count", uint32_t{1}},
      {"llama.attention.layer_norm_rms_epsilon", 1e-5F}};
  std::vector<GgufTensorSpec> tensors = {{"token_embd.weight", GgmlType::kF32, {5, 4}},
                                         {"blk.0.attn_norm.weight", GgmlType::kF32, {4}},
                                         {"blk.0.attn_q.weight", GgmlType::kF32, {4, 4}},
                                         {"blk.0.attn_k.weight", GgmlType::kF32, {4, 4}},
                                         {"blk.0.attn_v.weight", GgmlType::kF32, {4, 4}},
                                         {"blk.0.attn_output.weight", GgmlType::kF32, {4, 4}},
                                         {"blk.0.ffn_norm.weight", GgmlType::kF32, {4}},
                                         {"blk.0.ffn_gate.weight", GgmlType::kF32, {3, 4}},
                                         {"blk.0.ffn_up.weight", GgmlType::kF32, {3, 4}},
                                         {"blk.0.ffn_down.weight", GgmlType::kF32, {4, 3}},
                                         {"output_norm.weight", GgmlType::kF32, {4}}};
  std::map<std::string, std::vector<float>> values;

  GgufModel open() const {
    const TemporaryFolder folder;
    const fs::path path = folder.path() / "x.gguf";
    GgufWriter writer(path, metadata, tensors);
    for (const GgufTensorSpec& spec : tensors) {
      uint64_t elements = 1;
      for (const int64_t extent : spec.shape) elements *= static_cast<uint64_t>(extent);
      const GgmlBlock& block = *ggml_block(spec.type);
      std::vector<std::byte> bytes(elements / block.elements * block.bytes);
      std::vector<float> numbers(elements);
      for (size_t i = 0; i < elements; ++i) numbers[i] = static_cast<float>(i);
      if (const auto it = values.find(spec.name); it != values.end()) numbers = it->second;
      if (can_quantize(spec.type)) quantize(spec.type, numbers, bytes);
      writer.write(spec.name, bytes);
    }
    writer.finish();
    return GgufModel(path);
  }
  std::string error() const {
    return message_of([&] { open(); });
  }
  GgufTensorSpec& at(const std::string& name) {
    return *std::ranges::find(tensors, name, &GgufTensorSpec::name);
  }
};

TEST(GgufModel, PutsRotaryRowsBackIntoHalves) {
  const GgufModel model = Small().open();
  // Rows 0, 1, 2, 3 of the file are rows 0, 2, 1, 3.
  const std::vector<float> expected = {0, 1, 2, 3, 8, 9, 10, 11, 4, 5, 6, 7, 12, 13, 14, 15};
  EXPECT_EQ(read_floats(model, "model.layers.0.self_attn.q_proj.weight"), expected);
  EXPECT_EQ(read_floats(model, "model.layers.0.self_attn.v_proj.weight")[4], 4);
}

TEST(GgufModel, ReadsQuantisedTensorsAsFloat) {
  Small small;
  small.metadata[3].second = uint32_t{32};
  for (GgufTensorSpec& spec : small.tensors) {
    for (int64_t& extent : spec.shape) extent = extent == 4 ? 32 : extent;
  }
  small.at("token_embd.weight").type = GgmlType::kQ8_0;
  small.at("blk.0.attn_v.weight").type = GgmlType::kF16;
  const GgufModel model = small.open();
  EXPECT_EQ(model.find("model.embed_tokens.weight")->dtype, SafeDtype::kF32);
  EXPECT_EQ(model.find("model.layers.0.self_attn.v_proj.weight")->dtype, SafeDtype::kF16);
  EXPECT_EQ(model.config()["torch_dtype"], "float32");
  const std::vector<float> values = read_floats(model, "model.embed_tokens.weight");
  EXPECT_NEAR(values[159], 159, 0.7);
}

TEST(GgufModel, ListsEverythingThatIsWrongAtOnce) {
  Small small;
  small.at("blk.0.ffn_up.weight").shape = {4, 4};
  small.at("blk.0.ffn_down.weight").name = "blk.0.ffn_sideways.weight";
  small.at("blk.0.attn_v.weight").type = static_cast<GgmlType>(26); // I32
  EXPECT_THAT(small.error(),
              AllOf(HasSubstr("blk.0.ffn_up.weight has shape [4, 4] instead of [3, 4]"),
                    HasSubstr("missing tensors: blk.0.ffn_down.weight"),
                    HasSubstr("does not have: blk.0.ffn_sideways.weight"),
                    HasSubstr("blk.0.attn_v.weight has type I32")));
}

TEST(GgufModel, RefusesWhatItDoesNotKnow) {
  const auto with = [](const char* key, GgufValue value) {
    Small small;
    small.metadata.emplace_back(key, std::move(value));
    return small.error();
  };
  EXPECT_EQ(with("llama.vocab_size", uint32_t{5}), "");
  EXPECT_EQ(with("llama.expert_count", uint32_t{0}), "");
  EXPECT_THAT(with("llama.expert_count", uint32_t{8}), HasSubstr("expert_used_count"));
  EXPECT_THAT(with("llama.expert_feed_forward_length", uint32_t{8}), HasSubstr("is not supported"));
  EXPECT_THAT(with("llama.vocab_size", uint32_t{6}), HasSubstr("vocab_size=6, but"));
  EXPECT_THAT(with("llama.logit_scale", 0.5F), HasSubstr("'llama.logit_scale' is not supported"));
  EXPECT_THAT(with("llama.rope.dimension_count", uint32_t{2}), HasSubstr("dimension_count=2"));
  EXPECT_THAT(with("llama.rope.scaling.type", std::string("longrope")), HasSubstr("longrope"));
  EXPECT_THAT(with("llama.attention.head_count_kv", uint32_t{0}), HasSubstr("is not valid"));
  EXPECT_THAT(with("split.count", uint16_t{3}), HasSubstr("split into 3 files"));
  Small other;
  other.metadata[0].second = std::string("mamba");
  EXPECT_THAT(other.error(),
              HasSubstr("general.architecture=mamba is not supported; supported are llama"));
  Small layers;
  layers.metadata[1].second = uint32_t{2000000000};
  EXPECT_THAT(layers.error(), HasSubstr("block_count=2000000000, but there are 11 tensors"));
  Small missing;
  missing.metadata.pop_back();
  EXPECT_THAT(missing.error(), HasSubstr("has no 'llama.attention.layer_norm_rms_epsilon'"));
}

TEST(GgufModel, TakesOverRopeScaling) {
  const auto scaling = [](const GgufMetadata& more) {
    Small small;
    small.metadata.insert(small.metadata.end(), more.begin(), more.end());
    return small.open().config()["rope_scaling"];
  };
  EXPECT_EQ(scaling({}), nullptr);
  EXPECT_EQ(scaling({{"llama.rope.scaling.type", std::string("linear")},
                     {"llama.rope.scaling.factor", 4.0F}}),
            (Json{{"rope_type", "linear"}, {"factor", 4.0}}));
  EXPECT_EQ(scaling({{"llama.rope.scale_linear", 2.0F}}),
            (Json{{"rope_type", "linear"}, {"factor", 2.0}}));
  EXPECT_EQ(
      scaling({{"llama.rope.scaling.type", std::string("yarn")},
               {"llama.rope.scaling.factor", 0.1F},
               {"llama.rope.scaling.original_context_length", uint32_t{8}}}),
      (Json{{"rope_type", "yarn"}, {"factor", 0.1}, {"original_max_position_embeddings", 8}}));
}

TEST(GgufModel, RefusesRopeFrequenciesThatNoScalingGives) {
  Small small;
  small.tensors.push_back({"rope_freqs.weight", GgmlType::kF32, {2}});
  small.values["rope_freqs.weight"] = {1, 8};
  EXPECT_EQ(small.open().config()["rope_scaling"]["factor"], 8);
  small.values["rope_freqs.weight"] = {8, 1};
  EXPECT_THAT(small.error(), HasSubstr("do not come from Llama 3's frequency scaling"));
  small.values["rope_freqs.weight"] = {1, 1};
  EXPECT_EQ(small.open().config()["rope_scaling"], nullptr);
}

// Few frequencies between the plateaus do not show the parameters; the file has them beside.
TEST(GgufExport, Llama3sScalingComesBackWhateverItsLengths) {
  const TemporaryFolder folder;
  for (const auto& [factor, original, low, high] :
       std::vector<std::array<double, 4>>{{8, 1000, 1, 4}, {3.7, 777, 1, 2}, {4, 24, 0.5, 3}}) {
    HfFolder hf("llama");
    const Json rope = {{"rope_type", "llama3"},
                       {"factor", factor},
                       {"low_freq_factor", low},
                       {"high_freq_factor", high},
                       {"rope_theta", 3000.0},
                       {"original_max_position_embeddings", static_cast<int64_t>(original)}};
    hf.config["rope_parameters"] = rope;
    hf.config["rope_scaling"] = rope;
    hf.config["rope_theta"] = 3000.0;
    hf.write(folder.path() / "x.gguf");
    const Json back = GgufModel(folder.path() / "x.gguf").config()["rope_scaling"];
    for (const char* key :
         {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"})
      EXPECT_EQ(back[key].get<double>(), rope[key].get<double>()) << key << " of " << factor;
  }
}

TEST(Llama3Rope, IsFoundAgainFromItsDivisors) {
  const Llama3Rope ropes[] = {{},
                              {.factor = 32},
                              {.factor = 8, .original_positions = 4096},
                              {.factor = 5, .high_freq_factor = 7, .original_positions = 3000}};
  for (const Llama3Rope& rope : ropes) {
    const std::vector<float> divisors = llama3_divisors(rope, 500000, 128);
    const auto found = find_llama3_rope(divisors, 500000, 128);
    ASSERT_TRUE(found);
    EXPECT_EQ(found->factor, rope.factor);
    EXPECT_EQ(found->high_freq_factor, rope.high_freq_factor);
    EXPECT_EQ(found->original_positions, rope.original_positions);
    EXPECT_FALSE(find_llama3_rope(divisors, 10000, 128)); // other frequencies
  }
}

TEST(GgufExport, ListsEverythingThatIsWrongAtOnce) {
  const TemporaryFolder folder;
  HfFolder hf("llama");
  hf.sources[0].shape = {1, 2};
  hf.sources[1].name = "model.sideways.weight";
  hf.sources[2].dtype = SafeDtype::kI32;
  EXPECT_THAT(message_of([&] { hf.write(folder.path() / "x.gguf"); }),
              AllOf(HasSubstr("lm_head.weight has shape [1, 2] instead of [131, 48]"),
                    HasSubstr("model.sideways.weight is not part of the model"),
                    HasSubstr("model.embed_tokens.weight is missing"), HasSubstr("is I32")));
  EXPECT_THAT(names_in(folder.path()), IsEmpty());
}

TEST(GgufExport, RefusesWhatGgufHasNoPlaceFor) {
  const TemporaryFolder folder;
  const auto with = [&](const char* family, const char* key, Json value) {
    HfFolder hf(family);
    hf.config[key] = std::move(value);
    return message_of([&] { hf.write(folder.path() / "x.gguf"); });
  };
  EXPECT_THAT(with("gpt2", "activation_function", "relu"), HasSubstr("activation_function=relu"));
  EXPECT_THAT(with("gpt2", "scale_attn_by_inverse_layer_idx", true), HasSubstr("inverse_layer"));
  EXPECT_THAT(with("llama", "hidden_act", "gelu"), HasSubstr("hidden_act=gelu"));
  EXPECT_THAT(with("llama", "model_type", "bert"), HasSubstr("model_type=bert"));
  EXPECT_THAT(with("llama", "vocab_size", 0), HasSubstr("vocab_size=0 is not valid"));
  EXPECT_THAT(with("llama", "rope_parameters", {{"rope_type", "dynamic"}, {"factor", 2}}),
              HasSubstr("rope_type=dynamic cannot be stored"));
  EXPECT_THAT(with("qwen2", "rope_parameters",
                   {{"rope_type", "llama3"}, {"rope_theta", 10000.0}, {"factor", 2}}),
              HasSubstr("rope_type=llama3 cannot be stored in a GGUF file of qwen2"));
  HfFolder windowed("qwen2");
  windowed.config.update({{"use_sliding_window", true},
                          {"sliding_window", 8},
                          {"layer_types", {"full_attention", "sliding_attention"}}});
  EXPECT_THAT(message_of([&] { windowed.write(folder.path() / "x.gguf"); }),
              HasSubstr("sliding_window=8 in some layers of qwen2"));
}

TEST(GgufExport, RefusesWhatOneArchitectureHasNoPlaceFor) {
  const TemporaryFolder folder;
  const auto with = [&](const char* family, const char* key, Json value) {
    HfFolder hf(family);
    hf.config[key] = std::move(value);
    return message_of([&] { hf.write(folder.path() / "x.gguf"); });
  };
  EXPECT_THAT(
      with("gemma2", "query_pre_attn_scalar", 20),
      HasSubstr("query_pre_attn_scalar=20 cannot be stored in a GGUF file of gemma2, which implies "
                "16"));
  EXPECT_THAT(with("gemma3_text", "query_pre_attn_scalar", 20), HasSubstr("scalar=20"));
  EXPECT_THAT(with("gemma2", "attn_logit_softcapping", nullptr),
              HasSubstr("attn_logit_softcapping=null"));
  EXPECT_THAT(with("gemma3_text", "rope_parameters",
                   {{"full_attention", {{"rope_type", "default"}}},
                    {"sliding_attention", {{"rope_type", "linear"}, {"factor", 2}}}}),
              HasSubstr("rope_type=linear in layers with a sliding window cannot be stored"));
  EXPECT_THAT(with("gemma3_text", "rope_parameters",
                   {{"full_attention", {{"rope_type", "default"}}},
                    {"sliding_attention", {{"type", "linear"}, {"factor", 2}}}}),
              HasSubstr("rope_type=linear in layers with a sliding window cannot be stored"));
  EXPECT_THAT(with("gemma2", "tie_word_embeddings", false), HasSubstr("tie_word_embeddings=false"));
  EXPECT_THAT(with("gemma2", "hidden_activation", "silu"), HasSubstr("hidden_activation=silu"));
  EXPECT_THAT(with("gemma2", "attention_bias", true), HasSubstr("attention_bias=true"));
  EXPECT_THAT(with("gemma3_text", "layer_types", {"full_attention", "sliding_attention"}),
              HasSubstr("layer_types in which full_attention is not exactly every n-th layer"));
  EXPECT_THAT(with("olmo2", "tie_word_embeddings", true), HasSubstr("tie_word_embeddings=true"));
  EXPECT_THAT(with("olmo2", "attention_bias", true), HasSubstr("attention_bias=true"));
  EXPECT_THAT(with("olmo2", "head_dim", 16), HasSubstr("head_dim=16 times num_attention_heads="));
  EXPECT_THAT(with("phi3", "rope_parameters", {{"rope_type", "llama3"}, {"rope_theta", 1e4}}),
              HasSubstr("rope_type=llama3 cannot be stored in a GGUF file of phi3"));
  EXPECT_THAT(with("glm4", "hidden_act", "gelu"), HasSubstr("hidden_act=gelu"));
}

/// What a model becomes, or why it is none, if its file also says this.
class Changed {
 public:
  explicit Changed(const char* family) {
    HfFolder(family).write(folder_.path() / "x.gguf");
    original_.emplace(folder_.path() / "x.gguf");
  }
  Json config(const std::string& key, std::optional<GgufValue> value) const {
    GgufMetadata metadata = original_->metadata().all();
    std::erase_if(metadata, [&](const auto& entry) { return entry.first == key; });
    if (value) metadata.emplace_back(key, *value);
    std::vector<GgufTensorSpec> specs;
    for (const GgufTensor& t : original_->tensors()) specs.push_back({t.name, t.type, t.shape});
    GgufWriter writer(folder_.path() / "y.gguf", metadata, specs);
    for (const GgufTensor& t : original_->tensors()) writer.write(t.name, t.data);
    writer.finish();
    return GgufModel(folder_.path() / "y.gguf").config();
  }
  std::string error(const std::string& key, GgufValue value) const {
    return message_of([&] { config(key, std::move(value)); });
  }

 private:
  TemporaryFolder folder_;
  std::optional<GgufFile> original_;
};

TEST(GgufModel, TakesWhatGemmaFilesLeaveOutFromLlamaCpp) {
  const Changed gemma2("gemma2"), gemma3("gemma3_text");
  EXPECT_EQ(gemma2.config("gemma2.attn_logit_softcapping", std::nullopt)["attn_logit_softcapping"],
            50);
  EXPECT_EQ(
      gemma2.config("gemma2.final_logit_softcapping", std::nullopt)["final_logit_softcapping"], 30);
  EXPECT_EQ(gemma2.config("gemma2.attention.sliding_window", std::nullopt)["sliding_window"], 4096);
  const Json sliding = {"sliding_attention", "sliding_attention"},
             full = {"full_attention", "full_attention"};
  EXPECT_EQ(gemma2.config("gemma2.attention.sliding_window_pattern", uint32_t{3})["layer_types"],
            sliding);
  EXPECT_EQ(gemma3.config("gemma3.attention.sliding_window_pattern", std::nullopt)["layer_types"],
            sliding);
  EXPECT_EQ(gemma3.config("gemma3.attention.sliding_window", std::nullopt)["layer_types"], full);
  EXPECT_EQ(gemma3.config("gemma3.rope.freq_base_swa",
                          5000.0F)["rope_parameters"]["sliding_attention"]["rope_theta"],
            5000);
}

TEST(GgufModel, ReadsEveryArchitectureAsThePythonPackageWritesIt) {
  for (const char* name : {"llama", "gpt2", "olmo2", "phi3", "gemma2", "gemma3", "glm4"}) {
    const GgufModel model(fs::path(PENTATRON_TEST_DATA) / "fuzz/gguf_model_fuzz" / name);
    EXPECT_TRUE(model.config()["model_type"].get<std::string>().starts_with(name));
    if (model.find("model.norm.weight") == nullptr) continue;
    EXPECT_EQ(read_floats(model, "model.norm.weight")[0], name[0] == 'g' && name[1] == 'e' ? 0 : 1);
  }
}

TEST(GgufModel, RefusesWhatIsOfAnotherArchitecture) {
  EXPECT_THAT(Changed("llama").error("llama.attn_logit_softcapping", 50.0F),
              HasSubstr("'llama.attn_logit_softcapping' is not supported"));
  EXPECT_THAT(Changed("gemma3_text").error("gemma3.attn_logit_softcapping", 50.0F),
              HasSubstr("is not supported"));
  EXPECT_THAT(Changed("olmo2").error("olmo2.attention.sliding_window", uint32_t{4}),
              HasSubstr("does not specify which layers"));
  EXPECT_THAT(Changed("olmo2").error("olmo2.rope.dimension_count", uint32_t{6}),
              HasSubstr("dimension_count=6"));
  const Changed glm4("glm4");
  EXPECT_THAT(glm4.error("glm4.rope.dimension_count", uint32_t{18}), HasSubstr("=18 with a head"));
  EXPECT_EQ(glm4.config("glm4.rope.dimension_count", uint32_t{6})["partial_rotary_factor"], 0.375);
  EXPECT_EQ(Changed("phi3").config("phi3.attention.sliding_window", uint32_t{0})["sliding_window"],
            nullptr);
}

TEST(GgufModel, KeepsAnotherFactorOfLongRopeThanTheUsualOne) {
  const TemporaryFolder folder;
  HfFolder hf("phi3_longrope");
  const fs::path file = folder.path() / "x.gguf";
  hf.write(file);
  const char* const key = "phi3.rope.scaling.attn_factor";
  EXPECT_FLOAT_EQ(GgufFile(file).metadata().find_number(key).value(),
                  std::sqrt(1 + std::log(3.0) / std::log(32.0))); // 96 positions, of 32
  const Changed changed("phi3_longrope");
  EXPECT_EQ(changed.config(key, 1.25F)["rope_scaling"]["attention_factor"], 1.25);
  EXPECT_EQ(changed.config(key, std::nullopt)["rope_scaling"]["attention_factor"], 1);
  hf.config["rope_parameters"]["attention_factor"] = 1.25;
  fs::remove(file);
  hf.write(file);
  EXPECT_EQ(GgufFile(file).metadata().find_number(key), 1.25);
  EXPECT_EQ(GgufModel(file).config()["rope_scaling"]["attention_factor"], 1.25);
  EXPECT_THAT(changed.error("phi3.rope.scaling.type", std::string("linear")),
              HasSubstr("phi3.rope.scaling.type=linear together with rope_factors_long.weight"));
  EXPECT_THAT(changed.error("phi3.rope.scaling.factor", 2.0F), HasSubstr("rope.scaling.factor=2"));
  EXPECT_THAT(changed.error("phi3.rope.dimension_count", uint32_t{6}),
              HasSubstr("tensor 'rope_factors_long.weight' is F32 [4] instead of F32 [3]"));
}

TEST(GgufExport, NamesTheTensorWithAValueThatTheTypeCannotHold) {
  const TemporaryFolder folder;
  HfFolder hf("llama");
  hf.sources[0].read = [](std::span<std::byte> to) {
    std::vector<float> values(to.size() / sizeof(float), 1e6F);
    std::memcpy(to.data(), values.data(), to.size());
  };
  EXPECT_THAT(message_of([&] { hf.write(folder.path() / "x.gguf", GgmlType::kF16); }),
              HasSubstr("tensor lm_head.weight contains 1000000, which F16 cannot store\n  try: "));
  EXPECT_THAT(names_in(folder.path()), IsEmpty());
  hf.write(folder.path() / "x.gguf", GgmlType::kBF16);
}

} // namespace
} // namespace pentatron::checkpoint
