// The tokenizers of tests/data/tokenizers through a GGUF file: the ids stay those of the library
// that made them.
#include "pentatron/data/tokenizer/gguf_tokenizer.h"

#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "pentatron/base/error.h"
#include "pentatron/data/tokenizer/gguf_metadata.h"
#include "pentatron/data/tokenizer/gguf_pre.h"
#include "pentatron/data/tokenizer/open.h"
#include "tests/support/files.h"

namespace pentatron::data::tokenizer {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

fs::path tokenizers() {
  return fs::path(PENTATRON_TEST_DATA) / "tokenizers";
}

/// A file with a tokenizer and no model.
std::shared_ptr<const Tokenizer> through_file(const GgufMetadata& metadata) {
  const TemporaryFolder folder;
  GgufWriter writer(folder.path() / "x.gguf", metadata, {});
  writer.finish();
  return open_tokenizer({.path = folder.path() / "x.gguf"});
}

GgufMetadata metadata_of(const std::string& file) {
  const auto size = open_tokenizer({.path = tokenizers() / file})->vocab_size();
  return gguf_tokenizer_metadata(tokenizers() / file, size);
}

std::vector<int32_t> encode(const Tokenizer& tokenizer, const std::string& text) {
  std::vector<int32_t> ids;
  tokenizer.encode(text, ids);
  return ids;
}

const std::string& text_of(const GgufMetadata& metadata, const std::string& key) {
  const auto it = std::ranges::find(metadata, key, &std::pair<std::string, GgufValue>::first);
  return std::get<std::string>(it->second);
}

/// A tokenizer of tests/data/tokenizers and what its words are called.
struct Known {
  const char* name;
  const char* pre;
};
class ByteLevel : public testing::TestWithParam<Known> {};
INSTANTIATE_TEST_SUITE_P(Tokenizers, ByteLevel,
                         testing::Values(Known{"gpt2", "gpt-2"}, Known{"llama3", "llama-bpe"},
                                         Known{"qwen2", "qwen2"}, Known{"starcoder", "smollm"},
                                         Known{"deepseek", "deepseek-v3"},
                                         Known{"gpt4o", "gpt-4o"}),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(ByteLevel, KeepsIdsAndTexts) {
  const std::string name = GetParam().name;
  const GgufMetadata metadata = metadata_of(name + ".json");
  EXPECT_EQ(text_of(metadata, "tokenizer.ggml.model"), "gpt2");
  EXPECT_EQ(text_of(metadata, "tokenizer.ggml.pre"), GetParam().pre);
  const auto tokenizer = through_file(metadata);
  std::ifstream lines(tokenizers() / (name + ".expected.jsonl"));
  size_t count = 0;
  for (std::string line; std::getline(lines, line); ++count) {
    const Json expected = parse_json(line, name);
    const std::string text = expected["text"];
    ASSERT_EQ(Json(encode(*tokenizer, text)), expected["ids"]) << text;
    const auto ids = expected["dec"].get<std::vector<int64_t>>();
    ASSERT_EQ(tokenizer->decode_with_special(ids), expected["decoded"].get<std::string>()) << line;
  }
  EXPECT_GT(count, 50u);
}

class SentencePieceBpe : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Tokenizers, SentencePieceBpe,
                         testing::Values("real_mistral.model", "spm_bpe_bytes.model"));

TEST_P(SentencePieceBpe, KeepsIdsOfOrdinaryText) {
  const std::string file = GetParam();
  const GgufMetadata metadata = metadata_of(file);
  EXPECT_EQ(text_of(metadata, "tokenizer.ggml.model"), "llama");
  const auto tokenizer = through_file(metadata);
  std::ifstream lines(tokenizers() / (fs::path(file).stem().string() + ".expected.jsonl"));
  size_t count = 0;
  for (std::string line; std::getline(lines, line);) {
    const Json expected = parse_json(line, file);
    const std::string text = expected["text"];
    // SentencePiece never finds control tokens in a text, llama.cpp does.
    if (text.find('<') != std::string::npos) continue;
    ASSERT_EQ(Json(encode(*tokenizer, text)), expected["ids"]) << text;
    ++count;
  }
  EXPECT_GT(count, 50u);
}

TEST(GgufTokenizer, OfAConvertedSentencePieceModelKeepsIds) {
  const auto tokenizer = through_file(metadata_of("llama2.json"));
  std::ifstream lines(tokenizers() / "llama2.expected.jsonl");
  for (std::string line; std::getline(lines, line);) {
    const Json expected = parse_json(line, "llama2");
    ASSERT_EQ(Json(encode(*tokenizer, expected["text"])), expected["ids"]) << line;
    std::vector<int32_t> special;
    tokenizer->encode_with_special(expected["text"].get<std::string>(), special);
    ASSERT_EQ(Json(special), expected["special"]) << line;
  }
}

/// As Gemma's are: spaces become marks, none is added, and words are cut where no space is left.
TEST(GgufTokenizer, OfGemmasKindKeepsIds) {
  const TemporaryFolder folder;
  Json json = read_json(tokenizers() / "llama2.json");
  json["normalizer"] = {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "\u2581"}};
  json["pre_tokenizer"] = {{"type", "Split"},
                           {"pattern", {{"String", " "}}},
                           {"behavior", "MergedWithPrevious"},
                           {"invert", false}};
  const fs::path path = folder.path() / "tokenizer.json";
  std::ofstream(path) << dump_json(json);
  const auto direct = open_tokenizer({.path = path});
  const GgufMetadata metadata = gguf_tokenizer_metadata(path, direct->vocab_size());
  const auto prefix = std::ranges::find(metadata, "tokenizer.ggml.add_space_prefix",
                                        &std::pair<std::string, GgufValue>::first);
  EXPECT_EQ(prefix->second, GgufValue(false));
  const auto tokenizer = through_file(metadata);
  for (const char* text : {"the cat", " the  cat\n", "caf\u00e9 12,5 \u732b", ""})
    EXPECT_EQ(encode(*tokenizer, text), encode(*direct, text)) << text;
}

GgufMetadata letters() {
  const std::vector<std::string> tokens = {"<|end|>", "a", "b", "ab", "<think>", "[PAD5]"};
  return {{"tokenizer.ggml.model", std::string("gpt2")},
          {"tokenizer.ggml.pre", std::string("gpt-2")},
          {"tokenizer.ggml.tokens", GgufArray{tokens}},
          {"tokenizer.ggml.token_type", GgufArray{std::vector<int32_t>{3, 1, 1, 1, 4, 5}}},
          {"tokenizer.ggml.merges", GgufArray{std::vector<std::string>{"a b"}}},
          {"tokenizer.ggml.eos_token_id", uint32_t{0}},
          {"tokenizer.ggml.bos_token_id", uint32_t{0}},
          {"tokenizer.ggml.add_bos_token", true},
          {"tokenizer.chat_template", std::string("{{ bos_token }}")}};
}

GgufValue& at(GgufMetadata& metadata, const std::string& key) {
  return std::ranges::find(metadata, key, &std::pair<std::string, GgufValue>::first)->second;
}

TEST(GgufTokenizer, FollowsTheTypesOfTokens) {
  const auto tokenizer = through_file(letters());
  EXPECT_EQ(encode(*tokenizer, "ab<|end|>a<think>b[PAD5]"), (std::vector<int32_t>{3, 0, 1, 4, 2}));
  EXPECT_EQ(tokenizer->decode(std::vector<int64_t>{3, 0, 4}), "ab<think>");
  EXPECT_EQ(tokenizer->eod(), 0);
  EXPECT_EQ(tokenizer->vocab_size(), 6);
  std::vector<int32_t> ids;
  tokenizer->encode_with_special("a", ids);
  EXPECT_EQ(ids, (std::vector<int32_t>{0, 1}));
}

TEST(GgufTokenizer, BringsItsChatTemplateAndNamesItsTokens) {
  const TemporaryFolder folder;
  const fs::path file = folder.path() / "x.gguf";
  GgufWriter(file, letters(), {}).finish();
  EXPECT_EQ(find_chat_template(file), "{{ bos_token }}");
  EXPECT_EQ(configured_token(file, "eos_token"), "<|end|>");
  EXPECT_EQ(configured_token(file, "pad_token"), "");
  const GgufMetadata copied = gguf_tokenizer_metadata(file, 6);
  EXPECT_TRUE(copied == letters());
}

TEST(GgufTokenizer, IsKeptAsTheFilesOfAHuggingFaceFolder) {
  const TemporaryFolder folder;
  const fs::path with_weights = folder.path() / "x y.gguf";
  GgufMetadata metadata = letters();
  metadata.emplace_back("general.architecture", std::string("llama"));
  GgufWriter writer(with_weights, metadata, {{"t", GgmlType::kF32, {4}}});
  writer.write("t", std::vector<std::byte>(16, std::byte{1}));
  writer.finish();
  const std::vector<TokenizerFile> files = tokenizer_files({.path = with_weights});
  ASSERT_EQ(files.size(), 1u);
  EXPECT_EQ(files[0].name, "tokenizer.json");
  const fs::path alone = folder.path() / "alone";
  fs::create_directory(alone);
  for (const std::vector<TokenizerFile>& all :
       {files, files_beside_tokenizer({.path = with_weights})})
    for (const auto& [name, content] : all) write_file_atomically(alone / name, content);
  EXPECT_EQ(tokenizer_files({.path = alone})[0].content, files[0].content);
  EXPECT_EQ(find_chat_template(alone), "{{ bos_token }}");
  const auto copy = open_tokenizer({.path = alone}), whole = open_tokenizer({.path = with_weights});
  EXPECT_EQ(copy->eod(), whole->eod());
  EXPECT_EQ(copy->vocab_size(), whole->vocab_size());
  EXPECT_EQ(encode(*copy, "ab<|end|>a<think>b"), encode(*whole, "ab<|end|>a<think>b"));
}

TEST(GgufTokenizer, BecomesATokenizerJsonThatHuggingFacesLibraryTakes) {
  const Json json = gguf_as_tokenizer_json(GgufKeys(letters(), "letters"));
  // That library reads a component only with all of its members.
  for (const Json& component : {json["decoder"], json["pre_tokenizer"]["pretokenizers"].back()}) {
    EXPECT_EQ(component["type"], "ByteLevel");
    for (const char* key : {"add_prefix_space", "trim_offsets", "use_regex"})
      EXPECT_TRUE(component.contains(key)) << key;
  }
  EXPECT_EQ(json["post_processor"]["single"].size(), 2u);
  EXPECT_EQ(json["post_processor"]["pair"].size(), 4u);
  EXPECT_EQ(json["added_tokens"].size(), 2u);
}

TEST(GgufTokenizer, NamesWhatItDoesNotKnow) {
  const auto with = [](const std::string& key, GgufValue value) {
    GgufMetadata metadata = letters();
    at(metadata, key) = std::move(value);
    return message_of([&] { through_file(metadata); });
  };
  EXPECT_THAT(with("tokenizer.ggml.pre", std::string("klingon")),
              HasSubstr("tokenizer.ggml.pre=klingon is not known"));
  EXPECT_THAT(with("tokenizer.ggml.model", std::string("bert")), HasSubstr("model=bert"));
  EXPECT_THAT(with("tokenizer.ggml.model", std::string("none")),
              HasSubstr("contains no tokenizer"));
  EXPECT_THAT(with("tokenizer.ggml.eos_token_id", uint32_t{6}), HasSubstr("eos_token_id=6 of"));
  EXPECT_THAT(with("tokenizer.ggml.token_type", GgufArray{std::vector<int32_t>{3}}),
              HasSubstr("6 tokens, but 1 token type"));
  EXPECT_THAT(with("tokenizer.ggml.token_type", GgufArray{std::vector<int32_t>{3, 1, 1, 1, 4, 7}}),
              HasSubstr("token 5 of"));
  EXPECT_THAT(with("tokenizer.ggml.merges", uint32_t{1}), HasSubstr("list of strings"));
  EXPECT_THAT(with("tokenizer.ggml.tokens", GgufArray{std::vector<std::string>{"\xff"}}),
              HasSubstr("1 token, but 6 token types"));
}

TEST(GgufTokenizer, EveryNameOfWordsCanBeUsed) {
  for (const char* name :
       {"default", "gpt-2", "llama-bpe", "dbrx", "qwen2", "deepseek-r1-qwen", "qwen35", "smollm",
        "refact", "deepseek-v3", "deepseek-llm", "deepseek-coder", "tekken", "gpt-4o", "falcon",
        "bloom", "viking", "bailingmoe", "seed-coder"}) {
    GgufMetadata metadata = letters();
    at(metadata, "tokenizer.ggml.pre") = std::string(name);
    EXPECT_EQ(encode(*through_file(metadata), "ab"), std::vector<int32_t>{3}) << name;
  }
}

TEST(GgufMetadata, RefusesTokenizersThatGgufHasNoPlaceFor) {
  const auto error = [](const std::string& file, int64_t size) {
    return message_of([&] { gguf_tokenizer_metadata(tokenizers() / file, size); });
  };
  EXPECT_THAT(error("bert.json", 10000), HasSubstr("its model is WordPiece"));
  EXPECT_THAT(error("spm_unigram.model", 10000), HasSubstr("is not a BPE model"));
  EXPECT_THAT(error("roberta.json", 10000), HasSubstr("llama.cpp has no name for the pre_tok"));
  EXPECT_THAT(error("gpt2.json", 100), HasSubstr("but the model has 100 tokens"));
  EXPECT_THAT(error("gpt2.json", -1), HasSubstr("cannot have -1 tokens"));
  EXPECT_THAT(error("absent", 100), HasSubstr("neither tokenizer.json nor tokenizer.model"));
}

TEST(GgufMetadata, PadsUnusedIds) {
  const GgufMetadata metadata = gguf_tokenizer_metadata(tokenizers() / "gpt2.json", 600);
  const auto tokenizer = through_file(metadata);
  EXPECT_EQ(tokenizer->vocab_size(), 600);
  EXPECT_EQ(tokenizer->token_name(599), "[PAD599]");
}

} // namespace
} // namespace pentatron::data::tokenizer
