// The types that tensors get in GGUF files.
#include "pentatron/checkpoint/gguf/gguf_export.h"

#include <cmath>
#include <cstring>
#include <span>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "pentatron/base/gguf.h"
#include "pentatron/checkpoint/gguf/gguf_model.h"
#include "tests/support/files.h"

namespace pentatron::checkpoint {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

/// A model whose rows are whole blocks of 256, but for those of the down projection.
struct WideModel {
  explicit WideModel(bool tied, int64_t ffn = 512) {
    config = {{"model_type", "llama"},       {"hidden_size", 256},
              {"num_hidden_layers", 8},      {"num_attention_heads", 4},
              {"num_key_value_heads", 2},    {"intermediate_size", ffn},
              {"vocab_size", 300},           {"max_position_embeddings", 64},
              {"rms_norm_eps", 1e-5},        {"rope_theta", 10000.0},
              {"tie_word_embeddings", tied}, {"hidden_act", "silu"}};
    add("model.embed_tokens.weight", {300, 256});
    add("model.norm.weight", {256});
    if (!tied) add("lm_head.weight", {300, 256});
    for (int64_t i = 0; i < 8; ++i) {
      const std::string layer = fmt::format("model.layers.{}.", i);
      add(layer + "input_layernorm.weight", {256});
      add(layer + "post_attention_layernorm.weight", {256});
      add(layer + "self_attn.q_proj.weight", {256, 256});
      add(layer + "self_attn.k_proj.weight", {128, 256});
      add(layer + "self_attn.v_proj.weight", {128, 256});
      add(layer + "self_attn.o_proj.weight", {256, 256});
      add(layer + "mlp.gate_proj.weight", {ffn, 256});
      add(layer + "mlp.up_proj.weight", {ffn, 256});
      add(layer + "mlp.down_proj.weight", {256, ffn});
    }
  }
  void add(const std::string& name, std::vector<int64_t> shape) {
    sources.push_back({name, std::move(shape), SafeDtype::kF32, [](std::span<std::byte> to) {
                         for (size_t i = 0; i < to.size() / 4; ++i) {
                           const float value =
                               std::sin(static_cast<float>(i)) * (i % 7 == 0 ? 3.0F : 0.5F);
                           std::memcpy(to.data() + 4 * i, &value, 4);
                         }
                       }});
  }
  Json config;
  std::vector<GgufSource> sources;
};

TEST(GgufExport, OfQ4KHasTheTypesOfLlamaCppsMediumMix) {
  const TemporaryFolder folder;
  const fs::path path = folder.path() / "x.gguf";
  for (const bool tied : {false, true}) {
    const WideModel wide(tied);
    write_gguf(path, wide.config, wide.sources,
               {.type = GgmlType::kQ4_K, .name = {}, .tokenizer = {}});
    const GgufFile file(path);
    EXPECT_EQ(file.metadata().integer("general.file_type"), 15);
    for (const GgufTensor& tensor : file.tensors()) {
      // Layers 0, 3, 6 and 7: the first and the last eighth and every third between.
      bool more = tensor.name == (tied ? "token_embd.weight" : "output.weight");
      for (const char* layer : {"blk.0.", "blk.3.", "blk.6.", "blk.7."})
        more |= tensor.name == layer + std::string("attn_v.weight") ||
                tensor.name == layer + std::string("ffn_down.weight");
      EXPECT_EQ(name_of(tensor.type), tensor.shape.size() == 1 ? "F32"
                                      : more                   ? "Q6_K"
                                                               : "Q4_K")
          << tensor.name;
    }
    const GgufModel model(path);
    const GgufModel::Tensor& up = *model.find("model.layers.1.mlp.up_proj.weight");
    std::vector<float> back(up.size_bytes() / sizeof(float));
    model.read(up.name, std::as_writable_bytes(std::span(back)));
    double error = 0, norm = 0;
    for (size_t i = 0; i < back.size(); ++i) {
      const double x = std::sin(static_cast<float>(i)) * (i % 7 == 0 ? 3.0F : 0.5F);
      error += (back[i] - x) * (back[i] - x);
      norm += x * x;
    }
    EXPECT_LT(std::sqrt(error / norm), 0.1);
  }
  const WideModel narrow(false, 96); // 96 is not a multiple of 256, but of 32
  write_gguf(path, narrow.config, narrow.sources,
             {.type = GgmlType::kQ4_K, .name = {}, .tokenizer = {}});
  EXPECT_EQ(GgufFile(path).find("blk.1.ffn_down.weight")->type, GgmlType::kQ8_0);
}

TEST(GgufExport, ReadsTheNamesOfItsTypes) {
  EXPECT_EQ(gguf_type_from_name("Q8_0"), GgmlType::kQ8_0);
  EXPECT_EQ(gguf_type_from_name("bf16"), GgmlType::kBF16);
  EXPECT_EQ(gguf_type_from_name("q4_k"), GgmlType::kQ4_K);
  EXPECT_THAT(message_of([] { gguf_type_from_name("q5_k"); }), HasSubstr("try: f32"));
}
} // namespace
} // namespace pentatron::checkpoint
