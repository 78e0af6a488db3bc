// Ids and texts against those of the libraries that the tokenizers come from; tests/data/tokenizers
// says which.
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "pentatron/base/json.h"
#include "pentatron/data/tokenizer/chat_template.h"
#include "pentatron/data/tokenizer/hugging_face.h"
#include "pentatron/data/tokenizer/open.h"
#include "pentatron/data/tokenizer/stream_decoder.h"

namespace pentatron::data {
namespace {

namespace fs = std::filesystem;
const fs::path kFolder = fs::path(PENTATRON_TEST_DATA) / "tokenizers";

std::vector<Json> read_lines(const fs::path& file) {
  std::vector<Json> lines;
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) lines.push_back(Json::parse(line));
  return lines;
}

std::shared_ptr<const Tokenizer> open(const std::string& name) {
  for (const char* ending : {".json", ".model", ".tiktoken"}) {
    if (fs::exists(kFolder / (name + ending)))
      return tokenizer::open_tokenizer({.path = kFolder / (name + ending)});
  }
  throw DataError("no tokenizer " + name);
}

std::vector<int64_t> wide(const std::vector<int32_t>& ids) {
  return {ids.begin(), ids.end()};
}

class TokenizerGolden : public testing::TestWithParam<const char*> {};

TEST_P(TokenizerGolden, AgreesWithItsLibrary) {
  const auto tokenizer = open(GetParam());
  const auto encoder = tokenizer->make_encoder();
  const std::vector<Json> lines =
      read_lines(kFolder / (std::string(GetParam()) + ".expected.jsonl"));
  ASSERT_GT(lines.size(), 50u);
  for (const Json& line : lines) {
    const auto text = line["text"].get<std::string>();
    SCOPED_TRACE(text);
    std::vector<int32_t> ids, again, special;
    tokenizer->encode(text, ids);
    encoder->encode(text, again);
    EXPECT_EQ(ids, line["ids"].get<std::vector<int32_t>>());
    EXPECT_EQ(again, ids);
    if (line.contains("special")) {
      tokenizer->encode_with_special(text, special);
      EXPECT_EQ(special, line["special"].get<std::vector<int32_t>>());
    }
    const auto dec = line.contains("dec") ? line["dec"].get<std::vector<int64_t>>() : wide(ids);
    EXPECT_EQ(tokenizer->decode_with_special(dec), line["decoded"].get<std::string>());
  }
}

TEST_P(TokenizerGolden, StreamsTheSameText) {
  const auto tokenizer = open(GetParam());
  for (const Json& line : read_lines(kFolder / (std::string(GetParam()) + ".expected.jsonl"))) {
    const auto ids = line["ids"].get<std::vector<int64_t>>();
    const std::string whole = tokenizer->decode_with_special(ids);
    // Only bytes that are no characters may come out in another way; from text there are none.
    if (whole.find("\xEF\xBF\xBD") != std::string::npos) continue;
    StreamDecoder stream(*tokenizer, {.with_special = true});
    std::string text;
    for (const int64_t id : ids) {
      const std::string piece = stream.push(id);
      if (!piece.empty()) {
        EXPECT_NE(static_cast<unsigned char>(piece[0]) & 0xC0, 0x80) << "within a character";
        EXPECT_TRUE(Json(piece).dump().size() > 0); // throws for what is not UTF-8
      }
      text += piece;
    }
    text += stream.finish();
    EXPECT_EQ(text, whole) << line["text"];
  }
}

INSTANTIATE_TEST_SUITE_P(All, TokenizerGolden,
                         testing::Values("gpt2", "roberta", "llama3", "qwen2", "gpt4o", "deepseek",
                                         "starcoder", "classes", "bert", "bert_cased", "word_nfkc",
                                         "word_nfd", "unigram_nmt", "unigram_bytes", "llama2",
                                         "mistral", "bpe_prefix", "bpe_suffix", "t5", "spm_unigram",
                                         "spm_bpe", "spm_bpe_bytes", "spm_suffix", "spm_word",
                                         "spm_char", "cl100k_small", "o200k_small", "real_mistral"),
                         [](const auto& info) { return std::string(info.param); });

TEST(TokenizerThreads, EncodeTheSameOnOneTokenizer) {
  const auto tokenizer = open("llama3");
  const std::vector<Json> lines = read_lines(kFolder / "llama3.expected.jsonl");
  std::vector<std::thread> threads;
  std::vector<int> wrong(4, 0);
  for (size_t t = 0; t < wrong.size(); ++t) {
    threads.emplace_back([&, t] {
      for (int round = 0; round < 3; ++round) {
        for (const Json& line : lines) {
          std::vector<int32_t> ids;
          tokenizer->encode(line["text"].get<std::string>(), ids);
          wrong[t] += ids != line["ids"].get<std::vector<int32_t>>();
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(wrong, testing::Each(0));
}

TEST(TokenizerLength, OfOneWordDoesNotSlowItDown) {
  // With time that grew with the square of the length, each of these would take minutes.
  std::string letters(size_t{1} << 20, 'a');
  for (size_t i = 0; i < letters.size(); ++i) letters[i] = static_cast<char>('a' + i * i % 26);
  std::string marks = "e";
  for (int i = 0; i < 200000; ++i) marks += i % 2 == 0 ? "\xCC\x81" : "\xCC\xA3";
  for (const char* name : {"gpt2", "qwen2", "llama2", "bert", "t5", "spm_unigram", "spm_bpe",
                           "cl100k_small", "gpt4o", "deepseek"}) {
    SCOPED_TRACE(name);
    const auto tokenizer = open(name);
    for (const std::string& text :
         {letters, std::string(size_t{1} << 20, 'a'), std::string(size_t{1} << 20, ' ') + "x",
          std::string(size_t{1} << 20, '\n') + "x", marks}) {
      std::vector<int32_t> ids;
      tokenizer->encode(text, ids);
      EXPECT_FALSE(ids.empty());
    }
  }
}

TEST(ChatTemplate, AgreesWithJinja) {
  for (const Json& line : read_json(kFolder / "chat.json")) {
    // Parsed again, because the order of members counts.
    SCOPED_TRACE(line["name"]);
    const tokenizer::ChatTemplate chat(line["template"].get<std::string>());
    if (line["expected"].is_null()) {
      EXPECT_THROW(chat.render(line["variables"]), DataError);
    }
  }
  std::ifstream file(kFolder / "chat.json");
  for (const auto& line : nlohmann::ordered_json::parse(file)) {
    if (line["expected"].is_null()) continue;
    SCOPED_TRACE(line["name"]);
    const tokenizer::ChatTemplate chat(line["template"].get<std::string>());
    EXPECT_EQ(chat.render(line["variables"]), line["expected"].get<std::string>());
  }
}

TEST(TokenizerPairs, AgreeWithTheLibrary) {
  const Json cases = Json::parse(std::ifstream(kFolder / "pairs.json"));
  ASSERT_GT(cases.size(), 300u);
  for (const Json& c : cases) {
    SCOPED_TRACE(c.dump());
    const auto file = kFolder / (c["tokenizer"].get<std::string>() + ".json");
    Json json = Json::parse(std::ifstream(file));
    if (!c["post"].is_null()) json["post_processor"] = c["post"];
    const auto tokenizer = tokenizer::make_hugging_face(json, {});
    const auto a = c["a"].get<std::string>();
    const auto b = c["b"].is_null() ? std::nullopt : std::optional(c["b"].get<std::string>());
    const EncodedPair pair = tokenizer->encode_pair(a, b, c["length"].get<int64_t>());
    EXPECT_EQ(pair.tokens, c["ids"].get<std::vector<int32_t>>());
    EXPECT_EQ(pair.types, c["types"].get<std::vector<int32_t>>());
  }
}

TEST(TokenizerPairs, WithoutAPostProcessorAreTheTwoTexts) {
  const EncodedPair pair = ByteTokenizer().encode_pair("ab", "c");
  EXPECT_THAT(pair.tokens, testing::ElementsAre('a', 'b', 'c'));
  EXPECT_THAT(pair.types, testing::ElementsAre(0, 0, 1));
  EXPECT_EQ(ByteTokenizer().encode_pair("abcdef", std::nullopt, 4).tokens.size(), 4u);
}

TEST(TokenizerPairs, ALengthWithoutRoomForTextIsAnError) {
  EXPECT_THROW(open("bert")->encode_pair("a", "b", 3), DataError);
}

} // namespace
} // namespace pentatron::data
