// Mixtures of experts as GGUF files and back: llama.cpp's names and shapes.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "pentatron/base/error.h"
#include "pentatron/base/gguf.h"
#include "pentatron/checkpoint/gguf/gguf_model.h"
#include "tests/checkpoint/gguf/numbered_model.h"

namespace pentatron::checkpoint {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

constexpr int64_t kHidden = 8, kFfn = 6, kExpertFfn = 4, kShared = 10, kVocab = 11, kLayers = 2,
                  kExperts = 3, kHeads = 2, kKv = 1, kHead = 4;

/// A model of experts with two layers.
struct ExpertModel : NumberedModel {
  explicit ExpertModel(const std::string& type) : type(type) {
    const bool oss = type == "gpt_oss", olmoe = type == "olmoe";
    const int64_t kv_heads = olmoe ? kHeads : kKv,
                  ffn = type == "mixtral" || olmoe || oss ? kFfn : kExpertFfn;
    config = {{"model_type", type},
              {"hidden_size", kHidden},
              {"num_hidden_layers", kLayers},
              {"num_attention_heads", kHeads},
              {"num_key_value_heads", kv_heads},
              {"intermediate_size", kFfn},
              {"vocab_size", kVocab},
              {"max_position_embeddings", 64},
              {"rms_norm_eps", 1e-5},
              {"rope_theta", 10000.0},
              {"tie_word_embeddings", false},
              {"hidden_act", "silu"},
              {"num_experts_per_tok", 2},
              {type == "mixtral" || oss ? "num_local_experts" : "num_experts", kExperts}};
    if (type == "qwen3_moe" || oss) config["head_dim"] = kHead;
    if (type.starts_with("qwen")) {
      config["moe_intermediate_size"] = kExpertFfn;
      config["norm_topk_prob"] = type == "qwen3_moe";
    }
    if (type == "qwen2_moe") config["shared_expert_intermediate_size"] = kShared;
    if (oss) config["sliding_window"] = 5;
    const bool biases = oss, qkv_biases = oss || type == "qwen2_moe";
    add("model.embed_tokens.weight", {kVocab, kHidden});
    for (int64_t i = 0; i < kLayers; ++i) {
      const std::string layer = fmt::format("model.layers.{}.", i), mlp = layer + "mlp.";
      for (const char* norm : {"input_layernorm", "post_attention_layernorm"})
        add(layer + norm + ".weight", {kHidden});
      const auto linear = [&](const std::string& name, std::vector<int64_t> shape, bool bias) {
        add(name + ".weight", shape);
        shape.pop_back();
        if (bias) add(name + ".bias", shape);
      };
      linear(layer + "self_attn.q_proj", {kHeads * kHead, kHidden}, qkv_biases);
      linear(layer + "self_attn.k_proj", {kv_heads * kHead, kHidden}, qkv_biases);
      linear(layer + "self_attn.v_proj", {kv_heads * kHead, kHidden}, qkv_biases);
      linear(layer + "self_attn.o_proj", {kHidden, kHeads * kHead}, biases);
      if (oss) add(layer + "self_attn.sinks", {kHeads});
      if (olmoe || type == "qwen3_moe") {
        add(layer + "self_attn.q_norm.weight", {olmoe ? kHeads * kHead : kHead});
        add(layer + "self_attn.k_norm.weight", {olmoe ? kHeads * kHead : kHead});
      }
      linear(mlp + "router", {kExperts, kHidden}, biases);
      linear(mlp + "experts.gate_proj", {kExperts, ffn, kHidden}, biases);
      linear(mlp + "experts.up_proj", {kExperts, ffn, kHidden}, biases);
      linear(mlp + "experts.down_proj", {kExperts, kHidden, ffn}, biases);
      if (type != "qwen2_moe") continue;
      add(mlp + "shared_expert_gate.weight", {1, kHidden});
      add(mlp + "shared_expert.gate_proj.weight", {kShared, kHidden});
      add(mlp + "shared_expert.up_proj.weight", {kShared, kHidden});
      add(mlp + "shared_expert.down_proj.weight", {kHidden, kShared});
    }
    add("model.norm.weight", {kHidden});
    add("lm_head.weight", {kVocab, kHidden});
  }

  std::string type;
};

class ExpertFamily : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Families, ExpertFamily,
                         testing::Values("mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "gpt_oss"));

TEST_P(ExpertFamily, ComesBackAsItWas) {
  const TemporaryFolder folder;
  const ExpertModel given(GetParam());
  given.write(folder.path() / "x.gguf");
  const GgufModel model(folder.path() / "x.gguf");
  EXPECT_EQ(model.tensors().size(), given.values.size());
  for (const auto& [name, numbers] : given.values) {
    const GgufModel::Tensor* const tensor = model.find(name);
    ASSERT_NE(tensor, nullptr) << name;
    std::vector<float> got(tensor->size_bytes() / sizeof(float));
    model.read(name, std::as_writable_bytes(std::span(got)));
    EXPECT_EQ(got, numbers) << name;
  }
  for (const auto& [key, value] : given.config.items())
    if (key != "num_key_value_heads" || value != kHeads) {
      EXPECT_EQ(model.config().value(key, Json()), value) << key;
    }
}

TEST_P(ExpertFamily, HasTheNamesAndShapesOfLlamaCpp) {
  const TemporaryFolder folder;
  const ExpertModel given(GetParam());
  given.write(folder.path() / "x.gguf", GgmlType::kF16);
  const GgufFile file(folder.path() / "x.gguf");
  const std::string architecture = file.metadata().text("general.architecture"), type = GetParam();
  EXPECT_EQ(architecture, type == "mixtral"     ? "llama"
                          : type == "qwen2_moe" ? "qwen2moe"
                          : type == "qwen3_moe" ? "qwen3moe"
                          : type == "gpt_oss"   ? "gpt-oss"
                                                : type);
  EXPECT_EQ(file.metadata().integer(architecture + ".expert_count"), kExperts);
  EXPECT_EQ(file.metadata().integer(architecture + ".expert_used_count"), 2);
  const auto numbers = [&](const char* name) { return given.values.at(name); };
  const auto at = [&](const char* name) -> const GgufTensor& {
    const GgufTensor* const tensor = file.find(name);
    if (tensor == nullptr) throw std::runtime_error(name);
    return *tensor;
  };
  const int64_t ffn = type.starts_with("qwen") ? kExpertFfn : kFfn;
  EXPECT_EQ(at("blk.1.ffn_gate_exps.weight").shape, (std::vector<int64_t>{kExperts, ffn, kHidden}));
  EXPECT_EQ(at("blk.1.ffn_up_exps.weight").shape, (std::vector<int64_t>{kExperts, ffn, kHidden}));
  EXPECT_EQ(at("blk.1.ffn_down_exps.weight").shape, (std::vector<int64_t>{kExperts, kHidden, ffn}));
  EXPECT_EQ(at("blk.1.ffn_down_exps.weight").type, GgmlType::kF16);
  EXPECT_EQ(at("blk.1.ffn_gate_inp.weight").type, GgmlType::kF32) << "routers are not rounded";
  const auto first = [&](const char* name) {
    float value;
    std::memcpy(&value, at(name).data.data(), sizeof(value));
    return value;
  };
  EXPECT_EQ(first("blk.0.ffn_gate_inp.weight"), numbers("model.layers.0.mlp.router.weight")[0]);
  if (type == "qwen2_moe") {
    EXPECT_EQ(at("blk.0.ffn_gate_inp_shexp.weight").type, GgmlType::kF32);
    EXPECT_EQ(at("blk.0.ffn_gate_inp_shexp.weight").shape, (std::vector<int64_t>{kHidden}));
    EXPECT_EQ(at("blk.0.ffn_up_shexp.weight").shape, (std::vector<int64_t>{kShared, kHidden}));
    EXPECT_EQ(file.metadata().integer("qwen2moe.expert_shared_feed_forward_length"), kShared);
  }
  if (type != "gpt_oss") return;
  EXPECT_EQ(first("blk.0.attn_sinks.weight"), numbers("model.layers.0.self_attn.sinks")[0]);
  EXPECT_EQ(first("blk.0.ffn_down_exps.bias"),
            numbers("model.layers.0.mlp.experts.down_proj.bias")[0]);
  EXPECT_EQ(at("blk.0.ffn_gate_exps.bias").type, GgmlType::kF32);
  EXPECT_EQ(at("blk.0.post_attention_norm.weight").shape, std::vector<int64_t>{kHidden});
  EXPECT_EQ(file.metadata().integer("gpt-oss.attention.sliding_window"), 5);
}

TEST(GgufExperts, RefuseWhatLlamaCppDoesNotCompute) {
  const auto error = [](const char* type, const char* key, const Json& value) {
    ExpertModel model(type);
    model.config[key] = value;
    return model.error();
  };
  EXPECT_THAT(error("qwen2_moe", "norm_topk_prob", true), HasSubstr("norm_topk_prob=true cannot"));
  EXPECT_THAT(error("qwen3_moe", "norm_topk_prob", false), HasSubstr("norm_topk_prob=false"));
  EXPECT_THAT(error("qwen3_moe", "mlp_only_layers", {1}), HasSubstr("mlp_only_layers=[1]"));
  EXPECT_THAT(error("qwen2_moe", "decoder_sparse_step", 2), HasSubstr("decoder_sparse_step=2"));
  EXPECT_THAT(error("qwen2_moe", "qkv_bias", false), HasSubstr("qkv_bias=false"));
  EXPECT_THAT(error("olmoe", "norm_topk_prob", true), HasSubstr("norm_topk_prob=true"));
  EXPECT_THAT(error("olmoe", "num_key_value_heads", 1), HasSubstr("num_key_value_heads=1"));
  EXPECT_THAT(error("gpt_oss", "swiglu_limit", 5), HasSubstr("swiglu_limit=5 cannot"));
  EXPECT_THAT(error("gpt_oss", "attention_bias", false), HasSubstr("attention_bias=false"));
  EXPECT_THAT(error("gpt_oss", "sliding_window", nullptr), HasSubstr("sliding_window=null"));
  EXPECT_THAT(error("gpt_oss", "layer_types", {"full_attention", "sliding_attention"}),
              HasSubstr("layer_types in which the layers with a window are not 0, 2, 4"));
}

} // namespace
} // namespace pentatron::checkpoint
