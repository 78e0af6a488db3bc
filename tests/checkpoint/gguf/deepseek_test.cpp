// DeepSeek-V3 as llama.cpp's deepseek2, and back.
#include <optional>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "pentatron/base/gguf.h"
#include "pentatron/checkpoint/gguf/gguf_model.h"
#include "tests/checkpoint/gguf/numbered_model.h"

namespace pentatron::checkpoint::deepseek {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

constexpr int64_t kHidden = 6, kFfn = 10, kExpertFfn = 5, kVocab = 11, kExperts = 4, kHeads = 3,
                  kQRank = 7, kKvRank = 8, kKeys = 5, kRotary = 4, kValue = 3;

Json yarn(double mscale, double all, std::optional<double> beta_fast = {}) {
  Json rope = {{"rope_type", "yarn"}, {"rope_theta", 10000.0},
               {"factor", 4.0},       {"original_max_position_embeddings", 16},
               {"mscale", mscale},    {"mscale_all_dim", all}};
  if (beta_fast) rope["beta_fast"] = *beta_fast;
  return rope;
}

/// A model of three layers.
struct DeepSeek : NumberedModel {
  explicit DeepSeek(const Json& changes = Json::object()) {
    config = {{"model_type", "deepseek_v3"},
              {"hidden_size", kHidden},
              {"num_hidden_layers", 3},
              {"num_attention_heads", kHeads},
              {"num_key_value_heads", kHeads},
              {"intermediate_size", kFfn},
              {"moe_intermediate_size", kExpertFfn},
              {"vocab_size", kVocab},
              {"max_position_embeddings", 64},
              {"rms_norm_eps", 1e-6},
              {"rope_theta", 10000.0},
              {"tie_word_embeddings", false},
              {"first_k_dense_replace", 1},
              {"n_routed_experts", kExperts},
              {"n_shared_experts", 2},
              {"num_experts_per_tok", 2},
              {"n_group", 2},
              {"topk_group", 1},
              {"norm_topk_prob", true},
              {"routed_scaling_factor", 2.5},
              {"q_lora_rank", kQRank},
              {"kv_lora_rank", kKvRank},
              {"qk_nope_head_dim", kKeys},
              {"qk_rope_head_dim", kRotary},
              {"v_head_dim", kValue}};
    config.update(changes);
    add("model.embed_tokens", {kVocab, kHidden});
    for (int64_t i = 0; i < config["num_hidden_layers"]; ++i) add_layer(i);
    add("model.norm", {kHidden});
    if (!config["tie_word_embeddings"]) add("lm_head", {kVocab, kHidden});
  }
  void add_layer(int64_t i) {
    const std::string layer = fmt::format("model.layers.{}.", i), mlp = layer + "mlp.",
                      attention = layer + "self_attn.";
    const auto gated = [&](const std::string& name, int64_t ffn) {
      add(name + "gate_proj", {ffn, kHidden});
      add(name + "up_proj", {ffn, kHidden});
      add(name + "down_proj", {kHidden, ffn});
    };
    add(layer + "input_layernorm", {kHidden});
    add(layer + "post_attention_layernorm", {kHidden});
    const int64_t q = kHeads * (kKeys + kRotary);
    if (config["q_lora_rank"].is_null()) {
      add(attention + "q_proj", {q, kHidden});
    } else {
      add(attention + "q_a_proj", {kQRank, kHidden});
      add(attention + "q_a_layernorm", {kQRank});
      add(attention + "q_b_proj", {q, kQRank});
    }
    add(attention + "kv_a_proj_with_mqa", {kKvRank + kRotary, kHidden});
    add(attention + "kv_a_layernorm", {kKvRank});
    add(attention + "kv_b_proj", {kHeads * (kKeys + kValue), kKvRank});
    add(attention + "o_proj", {kHidden, kHeads * kValue});
    if (i < config["first_k_dense_replace"]) return gated(mlp, kFfn);
    add(mlp + "router", {kExperts, kHidden});
    add(mlp + "router.expert_bias", {kExperts}, "");
    const int64_t ffn = config["moe_intermediate_size"];
    add(mlp + "experts.gate_proj", {kExperts, ffn, kHidden});
    add(mlp + "experts.up_proj", {kExperts, ffn, kHidden});
    add(mlp + "experts.down_proj", {kExperts, kHidden, ffn});
    gated(mlp + "shared_expert.", 2 * ffn);
  }
  void add(const std::string& module, const std::vector<int64_t>& shape,
           const std::string& weight = ".weight") {
    NumberedModel::add(module + weight, shape);
  }
};

Numbers numbers_of(const GgufModel& model, const std::string& name) {
  const GgufModel::Tensor* const tensor = model.find(name);
  if (tensor == nullptr) throw std::runtime_error(name);
  Numbers got(tensor->size_bytes() / sizeof(float));
  model.read(name, std::as_writable_bytes(std::span(got)));
  return got;
}

Numbers numbers_of(const GgufFile& file, const std::string& name) {
  const GgufTensor* const tensor = file.find(name);
  if (tensor == nullptr) throw std::runtime_error(name);
  Numbers got(tensor->data.size() / sizeof(float));
  std::memcpy(got.data(), tensor->data.data(), tensor->data.size());
  return got;
}

/// The file of a model, with other metadata.
void rewrite(const fs::path& from, const fs::path& to, const GgufMetadata& changes,
             const std::vector<std::string>& without) {
  const GgufFile file(from);
  GgufMetadata metadata = file.metadata().all();
  std::erase_if(metadata, [&](const auto& entry) {
    return std::ranges::find(without, entry.first) != without.end() ||
           std::ranges::any_of(changes, [&](const auto& c) { return c.first == entry.first; });
  });
  metadata.insert(metadata.end(), changes.begin(), changes.end());
  std::vector<GgufTensorSpec> specs;
  for (const GgufTensor& t : file.tensors()) specs.push_back({t.name, t.type, t.shape});
  GgufWriter writer(to, metadata, specs);
  for (const GgufTensor& t : file.tensors()) writer.write(t.name, t.data);
  writer.finish();
}

class DeepSeekVariants : public testing::TestWithParam<Json> {};
INSTANTIATE_TEST_SUITE_P(
    Variants, DeepSeekVariants,
    testing::Values(Json::object(), Json{{"q_lora_rank", nullptr}},
                    Json{{"q_lora_rank", nullptr}, {"num_hidden_layers", 27}},
                    Json{{"tie_word_embeddings", true}, {"first_k_dense_replace", 0}},
                    Json{{"first_k_dense_replace", 3}},
                    Json{{"norm_topk_prob", false}, {"n_group", 1}, {"topk_group", 1}},
                    Json{{"rope_scaling", yarn(0.707, 0.707)}, {"rms_norm_eps", 1e-5}},
                    Json{{"rope_scaling", yarn(1, 1, 1.5)}}));

TEST_P(DeepSeekVariants, ComesBackAsItWas) {
  const TemporaryFolder folder;
  const DeepSeek given(GetParam());
  given.write(folder.path() / "x.gguf");
  const GgufModel model(folder.path() / "x.gguf");
  EXPECT_EQ(model.tensors().size(), given.values.size());
  for (const auto& [name, numbers] : given.values)
    EXPECT_EQ(numbers_of(model, name), numbers) << name;
  for (const auto& [key, value] : given.config.items()) {
    Json expected = value;
    if (key == "rope_scaling") expected.erase("rope_theta");
    EXPECT_EQ(model.config().value(key, Json()), expected) << key;
  }
  EXPECT_EQ(model.config()["rope_interleave"], true);
  for (const auto& [name, times] : given.reads) EXPECT_EQ(times, 1) << name;
}

TEST(DeepSeekGguf, HasTheKeysAndTypesOfLlamaCpp) {
  const TemporaryFolder folder;
  DeepSeek(Json{{"rope_scaling", yarn(1, 1)}}).write(folder.path() / "x.gguf", GgmlType::kF16);
  const GgufFile file(folder.path() / "x.gguf");
  const GgufMetadata expected = {{"block_count", uint32_t{3}},
                                 {"context_length", uint32_t{64}},
                                 {"embedding_length", uint32_t{kHidden}},
                                 {"feed_forward_length", uint32_t{kFfn}},
                                 {"attention.head_count", uint32_t{kHeads}},
                                 {"attention.head_count_kv", uint32_t{1}},
                                 {"attention.layer_norm_rms_epsilon", 1e-6F},
                                 {"attention.q_lora_rank", uint32_t{kQRank}},
                                 {"attention.kv_lora_rank", uint32_t{kKvRank}},
                                 {"attention.key_length", uint32_t{kKvRank + kRotary}},
                                 {"attention.value_length", uint32_t{kKvRank}},
                                 {"attention.key_length_mla", uint32_t{kKeys + kRotary}},
                                 {"attention.value_length_mla", uint32_t{kValue}},
                                 {"rope.dimension_count", uint32_t{kRotary}},
                                 {"rope.freq_base", 10000.0F},
                                 {"rope.scaling.type", std::string("yarn")},
                                 {"rope.scaling.factor", 4.0F},
                                 {"rope.scaling.original_context_length", uint32_t{16}},
                                 {"rope.scaling.yarn_log_multiplier", 0.1F},
                                 {"leading_dense_block_count", uint32_t{1}},
                                 {"expert_feed_forward_length", uint32_t{kExpertFfn}},
                                 {"expert_shared_count", uint32_t{2}},
                                 {"expert_count", uint32_t{kExperts}},
                                 {"expert_used_count", uint32_t{2}},
                                 {"expert_group_count", uint32_t{2}},
                                 {"expert_group_used_count", uint32_t{1}},
                                 {"expert_weights_scale", 2.5F},
                                 {"expert_weights_norm", true},
                                 {"expert_gating_func", uint32_t{2}},
                                 {"vocab_size", uint32_t{kVocab}}};
  for (const auto& [key, value] : expected) {
    const GgufValue* const found = file.metadata().find("deepseek2." + key);
    ASSERT_NE(found, nullptr) << key;
    EXPECT_EQ(*found, value) << key;
  }
  size_t own = 0;
  for (const auto& [key, value] : file.metadata().all()) own += key.starts_with("deepseek2.");
  EXPECT_EQ(own, expected.size());
  EXPECT_EQ(file.find("blk.1.exp_probs_b.bias")->type, GgmlType::kF32);
  EXPECT_EQ(file.find("blk.1.ffn_gate_inp.weight")->type, GgmlType::kF32);
  EXPECT_EQ(file.find("blk.1.attn_kv_a_norm.weight")->type, GgmlType::kF32);
  EXPECT_EQ(file.find("blk.1.attn_k_b.weight")->type, GgmlType::kF16);
  EXPECT_EQ(file.find("blk.1.ffn_gate_shexp.weight")->shape,
            (std::vector<int64_t>{2 * kExpertFfn, kHidden}));
}

TEST(DeepSeekGguf, SharedExpertsHaveTheBitsOfLlamaCppsMediumMix) {
  const TemporaryFolder folder;
  DeepSeek(Json{{"moe_intermediate_size", 128}}).write(folder.path() / "x.gguf", GgmlType::kQ4_K);
  const GgufFile file(folder.path() / "x.gguf");
  EXPECT_EQ(file.find("blk.1.ffn_down_shexp.weight")->type, GgmlType::kQ4_K);
  EXPECT_EQ(file.find("blk.2.ffn_down_shexp.weight")->type, GgmlType::kQ6_K);
}

TEST(DeepSeekGguf, SplitsKeysTransposedAndValuesOfEachHead) {
  const TemporaryFolder folder;
  const DeepSeek given;
  given.write(folder.path() / "x.gguf");
  const GgufFile file(folder.path() / "x.gguf");
  EXPECT_EQ(file.find("blk.2.attn_k_b.weight")->shape,
            (std::vector<int64_t>{kHeads, kKvRank, kKeys}));
  EXPECT_EQ(file.find("blk.2.attn_v_b.weight")->shape,
            (std::vector<int64_t>{kHeads, kValue, kKvRank}));
  const Numbers& kv = given.values.at("model.layers.2.self_attn.kv_b_proj.weight");
  Numbers k, v;
  for (int64_t head = 0; head < kHeads; ++head) {
    const auto at = [&](int64_t row, int64_t column) {
      return kv[static_cast<size_t>((head * (kKeys + kValue) + row) * kKvRank + column)];
    };
    for (int64_t c = 0; c < kKvRank; ++c)
      for (int64_t r = 0; r < kKeys; ++r) k.push_back(at(r, c));
    for (int64_t r = 0; r < kValue; ++r)
      for (int64_t c = 0; c < kKvRank; ++c) v.push_back(at(kKeys + r, c));
  }
  EXPECT_EQ(numbers_of(file, "blk.2.attn_k_b.weight"), k);
  EXPECT_EQ(numbers_of(file, "blk.2.attn_v_b.weight"), v);
}

TEST(DeepSeekGguf, PartsOfDifferentTypesAreReadAsFloat) {
  const TemporaryFolder folder;
  const DeepSeek given;
  const std::string name = "model.layers.0.self_attn.kv_b_proj.weight";
  given.write(folder.path() / "x.gguf", GgmlType::kF16);
  EXPECT_EQ(GgufModel(folder.path() / "x.gguf").find(name)->dtype, SafeDtype::kF16);
  const GgufFile file(folder.path() / "x.gguf");
  std::vector<GgufTensorSpec> specs;
  for (const GgufTensor& t : file.tensors())
    specs.push_back({t.name, t.name == "blk.0.attn_v_b.weight" ? GgmlType::kF32 : t.type, t.shape});
  GgufWriter writer(folder.path() / "y.gguf", file.metadata().all(), specs);
  const Numbers values(static_cast<size_t>(kHeads * kValue * kKvRank), 0.5F);
  for (const GgufTensor& t : file.tensors())
    writer.write(t.name,
                 t.name == "blk.0.attn_v_b.weight" ? std::as_bytes(std::span(values)) : t.data);
  writer.finish();
  const GgufModel model(folder.path() / "y.gguf");
  EXPECT_EQ(model.find(name)->dtype, SafeDtype::kF32);
  Numbers expected = given.values.at(name);
  for (size_t i = 0; i < expected.size(); ++i)
    if (static_cast<int64_t>(i) / kKvRank % (kKeys + kValue) >= kKeys) expected[i] = 0.5F;
  EXPECT_EQ(numbers_of(model, name), expected);
}

// llama.cpp rotates neighbors; so does Hugging Face with rope_interleave.
TEST(DeepSeekGguf, HalvesOfRotaryPairsBecomeNeighbors) {
  const TemporaryFolder folder;
  const DeepSeek given(Json{{"rope_interleave", false}});
  given.write(folder.path() / "x.gguf");
  const GgufFile file(folder.path() / "x.gguf");
  const auto expect = [&](const char* gguf, const char* hf, int64_t head, int64_t columns) {
    const Numbers& from = given.values.at(hf);
    const Numbers got = numbers_of(file, gguf);
    constexpr int64_t kOrder[kRotary] = {0, 2, 1, 3};
    for (size_t i = 0; i < got.size(); ++i) {
      const int64_t row = static_cast<int64_t>(i) / columns, in_head = row % head - head + kRotary;
      const int64_t source = in_head < 0 ? row : row - in_head + kOrder[in_head];
      EXPECT_EQ(got[i], from[static_cast<size_t>(source * columns) + i % columns]) << gguf << i;
    }
  };
  expect("blk.1.attn_q_b.weight", "model.layers.1.self_attn.q_b_proj.weight", kKeys + kRotary,
         kQRank);
  expect("blk.1.attn_kv_a_mqa.weight", "model.layers.1.self_attn.kv_a_proj_with_mqa.weight",
         kKvRank + kRotary, kHidden);
  EXPECT_EQ(GgufModel(folder.path() / "x.gguf").config()["rope_interleave"], true);
}

// make.py wrote them with numpy; the tensors of both are the same model.
TEST(DeepSeekGguf, ReadsSplitAndOldFilesOfThePythonPackage) {
  const fs::path seeds = fs::path(PENTATRON_TEST_DATA) / "fuzz/gguf_model_fuzz";
  for (const char* name : {"deepseek2", "deepseek2_unsplit"}) {
    const GgufModel model(seeds / name);
    const Numbers got = numbers_of(model, "model.layers.1.self_attn.kv_b_proj.weight");
    ASSERT_EQ(got.size(), 40U);
    for (size_t i = 0; i < got.size(); ++i) EXPECT_EQ(got[i], static_cast<float>(i)) << name;
    const Json& config = model.config();
    EXPECT_EQ(config["qk_nope_head_dim"], 3) << name;
    EXPECT_EQ(config["qk_rope_head_dim"], 2) << name;
    EXPECT_EQ(config["v_head_dim"], 2) << name;
    EXPECT_EQ(config["q_lora_rank"], nullptr) << name;
    EXPECT_EQ(config["first_k_dense_replace"], 1) << name;
    EXPECT_EQ(config["rope_scaling"]["mscale_all_dim"], 0.707) << name;
    EXPECT_EQ(config["n_group"], 1) << name;
  }
}

TEST(DeepSeekGguf, AllGroupsAreNone) {
  const TemporaryFolder folder;
  DeepSeek(Json{{"n_group", 2}, {"topk_group", 2}}).write(folder.path() / "x.gguf");
  const GgufFile file(folder.path() / "x.gguf");
  EXPECT_EQ(file.metadata().integer("deepseek2.expert_group_count"), 1);
  EXPECT_EQ(file.metadata().integer("deepseek2.expert_group_used_count"), 1);
}

TEST(DeepSeekGguf, SaysThatQueriesAreNotCompressedWhereLlamaCppAsks) {
  const TemporaryFolder folder;
  const auto rank = [&](int64_t layers) {
    DeepSeek(Json{{"q_lora_rank", nullptr}, {"num_hidden_layers", layers}})
        .write(folder.path() / "x.gguf");
    return GgufFile(folder.path() / "x.gguf")
        .metadata()
        .find_integer("deepseek2.attention.q_lora_rank");
  };
  EXPECT_EQ(rank(3), 0);
  EXPECT_EQ(rank(27), std::nullopt);
}

TEST(DeepSeekGguf, RefusesWhatLlamaCppDoesNotCompute) {
  const auto error = [](const Json& changes) { return DeepSeek(changes).error(); };
  const auto scaled = [&](const Json& rope) { return error({{"rope_scaling", rope}}); };
  EXPECT_EQ(error(Json::object()), "");
  EXPECT_THAT(error({{"attention_bias", true}}),
              HasSubstr("attention_bias=true cannot be stored in a GGUF file of deepseek2"));
  EXPECT_THAT(error({{"hidden_act", "gelu"}}), HasSubstr("hidden_act=gelu"));
  EXPECT_THAT(error({{"num_key_value_heads", 1}}), HasSubstr("num_key_value_heads=1 with"));
  EXPECT_THAT(error({{"num_hidden_layers", 27}}),
              HasSubstr("q_lora_rank=7 with num_hidden_layers=27"));
  EXPECT_THAT(error({{"scoring_func", "softmax"}}), HasSubstr("scoring_func=softmax"));
  EXPECT_THAT(error({{"topk_method", "greedy"}}), HasSubstr("topk_method=greedy"));
  EXPECT_THAT(error({{"routed_scaling_factor", 0}}), HasSubstr("routed_scaling_factor=0"));
  EXPECT_THAT(error({{"moe_layer_freq", 2}}), HasSubstr("moe_layer_freq=2"));
  EXPECT_THAT(error({{"first_k_dense_replace", -1}}), HasSubstr("=-1 is not valid"));
  EXPECT_THAT(scaled({{"rope_type", "linear"}, {"factor", 2}}), HasSubstr("rope_type=linear"));
  EXPECT_THAT(scaled(yarn(0.8, 1.2)), HasSubstr("rope_parameters.mscale=0.8 with mscale_all_dim"));
  EXPECT_THAT(scaled(yarn(1, 0)), HasSubstr("rope_parameters.mscale_all_dim=0 with YaRN"));
  Json rope = yarn(1, 1);
  rope["factor"] = 0.5;
  EXPECT_THAT(scaled(rope), HasSubstr("rope_parameters.factor=0.5"));
  rope = yarn(0, 1);
  rope["attention_factor"] = 1.5;
  EXPECT_THAT(scaled(rope), HasSubstr("rope_parameters.attention_factor=1.5"));
  rope["attention_factor"] = 1;
  EXPECT_EQ(scaled(rope), "");
  rope["truncate"] = false;
  EXPECT_THAT(scaled(rope), HasSubstr("rope_parameters.truncate=false"));
}

TEST(DeepSeekGguf, ReadsWhatFilesLeaveOutAsLlamaCppAndRefusesOtherModels) {
  const TemporaryFolder folder;
  DeepSeek(Json{{"rope_scaling", yarn(1, 1)}}).write(folder.path() / "x.gguf");
  const auto config = [&](const GgufMetadata& changes, const std::vector<std::string>& without) {
    rewrite(folder.path() / "x.gguf", folder.path() / "y.gguf", changes, without);
    return GgufModel(folder.path() / "y.gguf").config();
  };
  const auto error = [&](const GgufMetadata& changes, const std::vector<std::string>& without) {
    return message_of([&] { config(changes, without); });
  };
  EXPECT_EQ(config({}, {"deepseek2.expert_weights_norm"})["norm_topk_prob"], false);
  EXPECT_EQ(config({}, {"deepseek2.expert_weights_scale"})["routed_scaling_factor"], 1.0);
  EXPECT_EQ(config({}, {"deepseek2.expert_group_count"})["topk_group"], 1);
  EXPECT_EQ(config({}, {"deepseek2.expert_gating_func"})["scoring_func"], "sigmoid");
  EXPECT_THAT(error({{"deepseek2.expert_gating_func", uint32_t{1}}}, {}),
              HasSubstr("deepseek2.expert_gating_func=1 is not supported"));
  EXPECT_THAT(error({{"deepseek2.nextn_predict_layers", uint32_t{1}}}, {}),
              HasSubstr("deepseek2.nextn_predict_layers=1 is not supported"));
  EXPECT_THAT(error({}, {"deepseek2.rope.scaling.yarn_log_multiplier"}),
              HasSubstr("without deepseek2.rope.scaling.yarn_log_multiplier"));
  EXPECT_THAT(error({{"deepseek2.rope.scaling.type", std::string("linear")}}, {}),
              HasSubstr("deepseek2.rope.scaling.type=linear"));
  EXPECT_THAT(error({{"deepseek2.rope.dimension_count", uint32_t{9}}}, {}),
              HasSubstr("dimension_count=9 with a head size of 9"));
  EXPECT_THAT(error({{"deepseek2.attention.key_length_mla", uint32_t{2000000000}}}, {}),
              HasSubstr("key_length_mla=2000000000 is not valid"));
}

/// What llama.cpp computes in another way than transformers is told once.
TEST(DeepSeekGguf, TellsWhatLlamaCppComputesOtherwise) {
  const TemporaryFolder folder;
  DeepSeek(Json{{"rope_scaling", yarn(1, 1)}}).write(folder.path() / "x.gguf");
  const auto told = [&](const GgufMetadata& changes, const std::vector<std::string>& without) {
    rewrite(folder.path() / "x.gguf", folder.path() / "y.gguf", changes, without);
    testing::internal::CaptureStderr();
    GgufModel(folder.path() / "y.gguf").config();
    return testing::internal::GetCapturedStderr();
  };
  const auto once = [](const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos && text.find(part) == text.rfind(part);
  };
  EXPECT_EQ(told({}, {}), "");
  EXPECT_TRUE(once(told({}, {"deepseek2.expert_gating_func"}), "llama.cpp takes a softmax"));
  EXPECT_TRUE(once(told({{"deepseek2.attention.layer_norm_rms_epsilon", 1e-5F}}, {}),
                   "layer_norm_rms_epsilon=1e-05 for the norms of latents"));
  EXPECT_TRUE(once(told({{"deepseek2.rope.scaling.yarn_beta_fast", 1.5F}}, {}),
                   "llama.cpp ignores deepseek2.rope.scaling.yarn_beta_fast"));
}

} // namespace
} // namespace pentatron::checkpoint::deepseek
