// The example of docs/adding-a-model.md, as the page has it, is a family that works.
#include <fstream>
#include <sstream>

#include <gtest/gtest.h>

#include "pentatron/checkpoint/hf/families/decoder.h"
#include "pentatron/checkpoint/hf/families/family.h"
#include "pentatron/models/param_specs.h"

namespace pentatron::checkpoint {
namespace {

// From the page.
models::ModelConfig read_heron(const ConfigReader& in) {
  models::ModelConfig c = read_decoder(in, {.norm_eps = 1e-5});
  c.add_qkv_bias = in.get<bool>("qkv_bias", true);
  c.norm_placement = models::NormPlacement::kOutput;
  read_rope(in, {}, c);
  return c;
}

Json write_heron(const models::ModelConfig& c) {
  Json json = write_decoder(c);
  json["qkv_bias"] = c.add_qkv_bias;
  write_rope(c, {}, json);
  return json;
}

void name_heron(const models::ModelConfig& c, TensorNames& out) {
  name_decoder(c,
               {.norms = {{"post_attention_layernorm", "attention_output_norm"},
                          {"post_feedforward_layernorm", "mlp_output_norm"}}},
               out);
}

Family heron_family() {
  return {
      .model_type = "heron",
      .architecture = [](const models::ModelConfig&) -> std::string { return "HeronForCausalLM"; },
      .read = read_heron,
      .write = write_heron,
      .names = name_heron};
}
// Till here.

std::string content_of_file(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

/// Without spaces and line breaks, which the formatter chooses.
std::string dense(std::string text) {
  std::erase_if(text, [](char c) { return c == ' ' || c == '\n'; });
  return text;
}

TEST(AddingAModel, ThePageHasThisExample) {
  const std::string source = content_of_file(__FILE__),
                    page = content_of_file(PENTATRON_TEST_DATA "/../../docs/adding-a-model.md");
  const size_t begin = source.find("// From the page.") + 17, end = source.find("// Till here.");
  ASSERT_LT(begin, end);
  EXPECT_NE(dense(page).find(dense(source.substr(begin, end - begin))), std::string::npos);
}

TEST(AddingAModel, TheExampleReadsWritesAndNamesAModel) {
  const Json json = {
      {"model_type", "heron"},    {"num_hidden_layers", 2},         {"hidden_size", 32},
      {"num_attention_heads", 4}, {"num_key_value_heads", 2},       {"intermediate_size", 64},
      {"vocab_size", 97},         {"max_position_embeddings", 128}, {"rms_norm_eps", 1e-5},
      {"qkv_bias", true},         {"tie_word_embeddings", false}};
  const Family heron = heron_family();
  const models::ModelConfig config = heron.read(ConfigReader(json, "config.json"));
  EXPECT_TRUE(config.add_qkv_bias);
  EXPECT_EQ(config.norm_placement, models::NormPlacement::kOutput);
  const Json written = heron.write(config);
  for (const auto& [key, value] : json.items()) {
    if (key != "model_type") {
      EXPECT_EQ(written.at(key), value) << key;
    }
  }
  const models::ParamSpecs specs = models::param_specs(config);
  TensorNames names;
  heron.names(config, names);
  std::set<std::string> named;
  for (const TensorNames::Entry& entry : names.take()) {
    EXPECT_TRUE(specs.contains(entry.param)) << entry.hf << " is no part of " << entry.param;
    named.insert(entry.param);
  }
  EXPECT_EQ(named.size(), specs.size()) << "every parameter has a name in the files";
}

} // namespace
} // namespace pentatron::checkpoint
