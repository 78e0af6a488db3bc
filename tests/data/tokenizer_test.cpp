// What files of tokenizers may not do, and the parts that no library's answers are needed for.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <regex>
#include <string>
#include <unistd.h>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "pentatron/base/atomic_file.h"
#include "pentatron/base/json.h"
#include "pentatron/base/sha256.h"
#include "pentatron/config/config.h"
#include "pentatron/data/dataset.h"
#include "pentatron/data/objectives/objective_tokenizer.h"
#include "pentatron/data/objectives/special_tokens.h"
#include "pentatron/data/tokenizer/byte_level.h"
#include "pentatron/data/tokenizer/byte_tokenizer_files.h"
#include "pentatron/data/tokenizer/chat_template.h"
#include "pentatron/data/tokenizer/hugging_face.h"
#include "pentatron/data/tokenizer/merges.h"
#include "pentatron/data/tokenizer/open.h"
#include "pentatron/data/tokenizer/splitter.h"
#include "pentatron/data/tokenizer/tiktoken.h"
#include "pentatron/data/tokenizer/train_bpe.h"
#include "pentatron/data/tokenizer/unicode.h"
#include "tests/support/files.h"

namespace pentatron::data {
namespace {

namespace fs = std::filesystem;
using namespace tokenizer;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const fs::path kTokenizerFiles = fs::path(PENTATRON_TEST_DATA) / "tokenizers";

template <class F> std::string message_of(F&& f) {
  try {
    f();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing was thrown";
}

/// Text of code points that patterns tell apart, all assigned in Unicode 14.
std::string random_text(std::mt19937_64& random) {
  constexpr char32_t kChars[] = {
      ' ',    ' ',   ' ',   '\n',    '\r',   '\t',   'a',    'b',    'Z',   'Q',    '1',    '2',
      '9',    '\'',  's',   'T',     'l',    'L',    'r',    'e',    'v',   'm',    'd',    '.',
      '/',    '!',   '$',   '_',     0x17F,  0xE9,   0xC9,   0x1C5,  0x2B0, 0x4E2D, 0x3042, 0x30AB,
      0x301,  0x903, 0x661, 0xBD,    0x2163, 0xA0,   0x3000, 0x2028, 0x85,  0x180E, 0x200D, 0x1F600,
      0x20AC, 0x0,   0x7F,  0x10000, 0xAC00, 0x9FA6, 0x9FA5, 0x312F};
  std::string text;
  const size_t length = random() % 24;
  for (size_t i = 0; i < length; ++i) append_utf8(text, kChars[random() % std::size(kChars)]);
  return text;
}

std::vector<std::string> words_of(const Splitter& splitter, std::string_view text) {
  std::vector<std::string> words;
  for (size_t from = 0; from < text.size();) {
    const Match match = splitter.find(text, from);
    if (!match.found()) break;
    words.push_back(std::to_string(match.begin) + ":" +
                    std::string(text.substr(match.begin, match.end - match.begin)));
    from = match.end;
  }
  return words;
}

TEST(Scanners, FindWhatTheRegularExpressionsFind) {
  const std::string deepseek =
      R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
  const std::string tekken =
      R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
  const std::string marks =
      R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
  const std::string r50k =
      R"('(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s)";
  std::mt19937_64 random(11);
  for (const std::string& pattern :
       {std::string(kGpt2Pattern), std::string(kCl100kPattern), std::string(kQwen2Pattern),
        std::string(kO200kPattern), std::string(kTiktokenCl100kPattern), deepseek, tekken, marks,
        r50k, std::string(R"(\p{N}{1,3})"), std::string("[一-龥぀-ゟ゠-ヿ]+")}) {
    SCOPED_TRACE(pattern);
    const auto scanner = find_scanner(pattern);
    ASSERT_NE(scanner, nullptr);
    const auto regex = make_regex_splitter(pattern, PatternFlavor::kRust);
    for (int i = 0; i < 4000; ++i) {
      const std::string text = random_text(random);
      ASSERT_EQ(words_of(*scanner, text), words_of(*regex, text)) << text;
    }
  }
}

struct PosixClass {
  const char* name;
  size_t count;
  const char* digest; ///< SHA-256 of the members in hexadecimal, with commas between
};

// All code points, one by one, through Split("[[:name:]]", "removed") of tokenizers 0.23.3.
TEST(Patterns, PosixClassesHaveTheMembersOfOniguruma) {
  for (const PosixClass& expected : std::initializer_list<PosixClass>{
           {"alpha", 142759, "55c15c0c56211c4826d7c5317b5ce65d6884be06c6ad90b8ea516c6c8e9f6148"},
           {"alnum", 143519, "a0c09b8ea30bd8225d41686b947218a7b3e4c7caaab42b5a7784671526c802e5"},
           {"word", 144665, "809f3eb4165704714b7c78660ae08af53b8aa88ff9ac502980b2cb32b0aaf559"},
           {"digit", 760, "88fa173ec8c1dea5163c6fc5cde15883e6becdf84ad47adf8d5c7072c7d5a2ae"},
           {"punct", 9369, "29890ae44d8050dcb963adb663566f7700fb703d101548ebe04691669f440f47"},
           {"upper", 1978, "22fea92d6aa04206cb31babbe0ea22f4aa10f1dd748cee010b2107f3464c6beb"},
           {"lower", 2569, "6d93dbf1325b30ec7bed1600579405a66fc0bf1f7a887636d18045fb60429490"},
           {"space", 25, "55781e2acca08c2e6394c817c6cc8a44d51cca5af522375cf54a2aeb7901b658"},
           {"blank", 18, "ade42ef2887564f420fb208600603a76897452704e4fd02b59a152e60adec1d3"},
           {"graph", 292447, "9ba5fa76dee26848c50a23bc6a6afe99d5b3a6f9659905a5850cb04ab417126a"},
           {"print", 292464, "b445c9a95f0442848c7d041e8015a1c8b787b76d68cf6c3be22de2dcb6794cf9"},
           {"cntrl", 65, "26f345f396656e3dda64dcf67876cf4fbfa7c7bf35aa1c1791db8d98d8084927"},
           {"xdigit", 22, "356c655ec3c41c23f07aaecc32101f124756e97a0028e84726ebbcd0258dbee6"},
           {"ascii", 128, "8d752cfa6eda55ae680f44ea1b7c7e29dd86a67547a630e217601ee6ef8e5c62"}}) {
    const auto splitter =
        make_regex_splitter(std::string("[[:") + expected.name + ":]]", PatternFlavor::kOniguruma);
    size_t count = 0;
    std::string members;
    for (char32_t c = 0; c < 0x110000; ++c) {
      if (c >= 0xD800 && c < 0xE000) continue;
      std::string text;
      append_utf8(text, c);
      if (!splitter->find(text, 0).found()) continue;
      members += fmt::format("{}{:x}", count++ == 0 ? "" : ",", static_cast<uint32_t>(c));
    }
    EXPECT_EQ(count, expected.count) << expected.name;
    EXPECT_EQ(sha256(members), expected.digest) << expected.name;
  }
  const auto words = [](const char* pattern, PatternFlavor flavor) {
    return words_of(*make_regex_splitter(pattern, flavor), "a\xC3\xA9\xE2\x82\xAC!");
  };
  EXPECT_THAT(words("[[:punct:]x]+", PatternFlavor::kOniguruma), ElementsAre("3:\xE2\x82\xAC!"));
  EXPECT_THAT(words("[[:punct:]x]+", PatternFlavor::kRust), ElementsAre("6:!")); // ASCII
  EXPECT_THAT(words("[^[:alpha:]]+", PatternFlavor::kOniguruma), ElementsAre("3:\xE2\x82\xAC!"));
  for (const char* pattern : {"[[:^alpha:]]", "[[:letters:]]"})
    EXPECT_THAT(message_of([&] { make_regex_splitter(pattern, PatternFlavor::kOniguruma); }),
                HasSubstr("which is not supported"));
}

TEST(Patterns, OfOtherEnginesAreTranslatedOrRefused) {
  const auto words = [](const char* pattern, const char* text) {
    return words_of(*make_regex_splitter(pattern, PatternFlavor::kOniguruma), text);
  };
  EXPECT_THAT(words(R"([\p{L}&&[^a-c]]+)", "abcdef"), ElementsAre("3:def"));
  EXPECT_THAT(words(R"([a[xy]]+)", "bxaz"), ElementsAre("1:xa"));
  EXPECT_THAT(words(R"([^\S\n]+)", "a \t\nb"), ElementsAre("1: \t"));
  EXPECT_THAT(words(R"(\s)", "\xE1\xA0\x8E"), ElementsAre()); // U+180E is no white space
  EXPECT_THAT(words(R"(b$)", "ab\ncb"), ElementsAre("1:b", "4:b"));
  EXPECT_THAT(words(R"(\u0041+)", "xAA"), ElementsAre("1:AA"));
  for (const char* bad : {"(", "[a", "(*ACCEPT)", "\\K", "[]", "(?R", "\\C", "a{9999999}"}) {
    EXPECT_THAT(message_of([&] { make_regex_splitter(bad, PatternFlavor::kRust); }),
                HasSubstr("pattern"))
        << bad;
  }
  const auto slow = make_regex_splitter("(?:a|aa)+$", PatternFlavor::kRust);
  EXPECT_THROW(slow->find(std::string(64, 'a') + "!", 0), DataError);
}

TEST(Merges, OfLongWordsAreThoseOfShortOnes) {
  // The same rules by hand: the lowest rank first, the leftmost of equals.
  std::mt19937_64 random(3);
  Merges merges(40);
  std::vector<std::tuple<int, int, uint32_t, int>> rules;
  for (int i = 0; i < 40; ++i) {
    const int a = static_cast<int>(random() % (4 + static_cast<size_t>(i) / 2));
    const int b = static_cast<int>(random() % (4 + static_cast<size_t>(i) / 2));
    merges.set(a, b, {static_cast<uint32_t>(i / 2), 4 + i});
  }
  for (int round = 0; round < 200; ++round) {
    std::vector<int32_t> symbols(random() % 200);
    for (int32_t& s : symbols) s = static_cast<int32_t>(random() % 4);
    std::vector<int32_t> expected = symbols;
    for (;;) {
      size_t best = 0;
      Merges::Result found;
      for (size_t i = 0; i + 1 < expected.size(); ++i) {
        const Merges::Result pair = merges.find(expected[i], expected[i + 1]);
        if (pair.rank < found.rank) {
          found = pair;
          best = i;
        }
      }
      if (found.rank == Merges::kNone) break;
      expected[best] = found.token;
      expected.erase(expected.begin() + static_cast<std::ptrdiff_t>(best) + 1);
    }
    merges.apply(symbols);
    ASSERT_EQ(symbols, expected);
  }
}

TEST(Unicode, NormalizationFormsAreStable) {
  std::mt19937_64 random(9);
  for (int i = 0; i < 2000; ++i) {
    const std::string text = random_text(random);
    for (const NormalForm form :
         {NormalForm::kNfc, NormalForm::kNfd, NormalForm::kNfkc, NormalForm::kNfkd}) {
      const std::string once = normalize(text, form);
      EXPECT_EQ(normalize(once, form), once);
    }
    EXPECT_EQ(normalize(normalize(text, NormalForm::kNfd), NormalForm::kNfc),
              normalize(text, NormalForm::kNfc));
  }
  EXPECT_EQ(normalize("e\xCC\x81\xEA\xB0\x81", NormalForm::kNfc), "\xC3\xA9\xEA\xB0\x81");
  EXPECT_EQ(to_lower("\xC4\xB0"), "i\xCC\x87");
  EXPECT_EQ(replace_invalid_utf8("a\xE2\x82z\xFF"), "a\xEF\xBF\xBDz\xEF\xBF\xBD");
}

TEST(HuggingFace, NamesWhatItDoesNotSupport) {
  const Json good = read_json(kTokenizerFiles / "gpt2.json");
  const auto with = [&](const char* pointer, const Json& value) {
    Json json = good;
    json[Json::json_pointer(pointer)] = value;
    return message_of([&] { make_hugging_face(json, {}); });
  };
  EXPECT_THAT(with("/normalizer", {{"type", "Odd"}}), HasSubstr("normalizer type Odd"));
  EXPECT_THAT(with("/pre_tokenizer", {{"type", "Odd"}}), HasSubstr("pre-tokenizer type Odd"));
  EXPECT_THAT(with("/decoder", {{"type", "Odd"}}), HasSubstr("decoder type Odd"));
  EXPECT_THAT(with("/post_processor", {{"type", "Odd"}}), HasSubstr("post-processor type Odd"));
  EXPECT_THAT(with("/model/type", "Odd"), HasSubstr("model type Odd"));
  EXPECT_THAT(with("/model/dropout", 0.1), HasSubstr("dropout"));
  EXPECT_THAT(with("/model/merges/0", "a"), HasSubstr("merge 0"));
  EXPECT_THAT(with("/model/merges/0", Json::array({"xyzzy", "a"})), HasSubstr("xyzzy"));
  EXPECT_THAT(with("/model/vocab/a", 4000000000u), HasSubstr("4000000000"));
  EXPECT_THAT(with("/model/vocab/a", 900000000), HasSubstr("900000000"));
  EXPECT_THAT(with("/added_tokens/0/id", -1), HasSubstr("-1"));
  EXPECT_THAT(message_of([] { make_hugging_face(Json::array(), {}); }), HasSubstr("object"));
}

TEST(HuggingFace, RefusesTextThatIsNotUtf8AndIdsOutside) {
  const auto tokenizer = open_tokenizer({.path = kTokenizerFiles / "gpt2.json"});
  std::vector<int32_t> ids;
  EXPECT_THAT(message_of([&] { tokenizer->encode("ab\xFF", ids); }), HasSubstr("byte 2"));
  EXPECT_THROW(tokenizer->decode(std::vector<int64_t>{tokenizer->vocab_size()}), DataError);
  EXPECT_EQ(tokenizer->decode(std::vector<int64_t>{tokenizer->eod()}), "");
  EXPECT_EQ(tokenizer->decode_with_special(std::vector<int64_t>{tokenizer->eod()}),
            "<|endoftext|>");
}

TEST(Tiktoken, IsKeptUnderANameThatCheckpointsAndFoldersTake) {
  const TemporaryFolder folder;
  const std::string ranks = content_of(kTokenizerFiles / "cl100k_small.tiktoken");
  for (const std::string& name :
       {std::string("cl100k.tmp-2.tiktoken"), std::string(".a b.tiktoken"),
        std::string(150, 'x') + ".tiktoken", std::string("ranks.bin")}) {
    const std::filesystem::path file = folder.path() / name;
    write_file_atomically(file, ranks);
    const auto files = tokenizer::tokenizer_files({.path = file});
    ASSERT_EQ(files.size(), 1u);
    EXPECT_TRUE(std::regex_match(files[0].name, std::regex("[A-Za-z0-9_-]{1,100}[.]tiktoken")))
        << files[0].name;
    const TemporaryFolder copy;
    write_file_atomically(copy.path() / files[0].name, files[0].content);
    EXPECT_EQ(tokenizer::open_tokenizer({.path = copy.path()})->vocab_size(),
              tokenizer::open_tokenizer({.path = file})->vocab_size());
  }
}

TEST(Tiktoken, NamesTheDamagedLine) {
  EXPECT_THAT(message_of([] { read_tiktoken("YQ== 0\nYg==\n"); }), HasSubstr("line 2"));
  EXPECT_THAT(message_of([] { read_tiktoken("Y!== 0\n"); }), HasSubstr("line 1"));
  EXPECT_THAT(message_of([] { read_tiktoken(""); }), HasSubstr("no tokens"));
  EXPECT_THAT(message_of([] {
                make_tiktoken(read_tiktoken("YQ== 0\n"), {.pattern = std::string(kGpt2Pattern)});
              }),
              HasSubstr("has no rank"));
}

TEST(TrainBpe, MergesThePairsSeenMostOften) {
  BpeTrainer trainer({.vocab_size = 260, .special = {"<|endoftext|>"}});
  trainer.add("aab aab aab xy");
  const Json json = trainer.train();
  // " a", "ab" and "aa" compete; the counts decide, then the order of the tokens.
  EXPECT_EQ(json["model"]["merges"].size(), 3u);
  const auto tokenizer = make_hugging_face(json, {});
  std::vector<int32_t> ids;
  tokenizer->encode("aab aab", ids);
  EXPECT_LT(ids.size(), 6u);
  std::vector<int64_t> wide(ids.begin(), ids.end());
  EXPECT_EQ(tokenizer->decode(wide), "aab aab");
  EXPECT_EQ(tokenizer->vocab_size(), 260);
  EXPECT_THROW(BpeTrainer({.vocab_size = 256}), ConfigError);
}

TEST(TrainBpe, GivesTheMergesOfCountingAnewEachTime) {
  std::mt19937_64 random(21);
  std::vector<std::string> words;
  for (int i = 0; i < 60; ++i) {
    std::string word;
    for (size_t n = 1 + random() % 9; n > 0; --n) word += static_cast<char>('a' + random() % 4);
    words.push_back(word);
  }
  BpeTrainer trainer({.vocab_size = 256 + 40, .special = {}, .min_frequency = 2});
  for (const std::string& word : words) trainer.add(word);
  const Json json = trainer.train();

  std::vector<std::vector<int>> texts;
  for (const std::string& word : words) texts.emplace_back(word.begin(), word.end());
  std::vector<std::string> tokens;
  for (int b = 0; b < 256; ++b) tokens.emplace_back(1, static_cast<char>(b));
  for (const Json& merge : json["model"]["merges"]) {
    std::map<std::pair<int, int>, int> counts;
    for (const auto& text : texts) {
      for (size_t i = 0; i + 1 < text.size(); ++i) ++counts[{text[i], text[i + 1]}];
    }
    auto best = counts.begin();
    for (auto it = counts.begin(); it != counts.end(); ++it) {
      if (it->second > best->second) best = it;
    }
    const auto [a, b] = best->first;
    ASSERT_EQ(merge, Json::array({bytes_to_characters(tokens[static_cast<size_t>(a)]),
                                  bytes_to_characters(tokens[static_cast<size_t>(b)])}));
    const std::string both = tokens[static_cast<size_t>(a)] + tokens[static_cast<size_t>(b)];
    auto known = std::find(tokens.begin(), tokens.end(), both);
    if (known == tokens.end()) known = tokens.insert(tokens.end(), both);
    const int token = static_cast<int>(known - tokens.begin());
    for (auto& text : texts) {
      for (size_t i = 0; i + 1 < text.size(); ++i) {
        if (text[i] != a || text[i + 1] != b) continue;
        text[i] = token;
        text.erase(text.begin() + static_cast<std::ptrdiff_t>(i) + 1);
      }
    }
  }
}

TEST(ChatTemplate, IsBounded) {
  const auto render = [](const char* source) {
    return message_of([&] { tokenizer::ChatTemplate(source).render(Json::object()); });
  };
  EXPECT_THAT(
      render("{% for a in range(90000) %}{% for b in range(90000) %}{% endfor %}{% endfor %}"),
      HasSubstr("too many steps"));
  EXPECT_THAT(render("{{ 'aaaaaaaaaaaaaaaa' * 100000000 }}"), HasSubstr("too long"));
  EXPECT_THAT(render("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}"), HasSubstr("too deep"));
  EXPECT_THAT(render("{{ range(1000000000)|list }}"), HasSubstr("too long"));
  EXPECT_THAT(
      render(("{{ " + std::string(1000, '(') + "1" + std::string(1000, ')') + " }}").c_str()),
      HasSubstr("too deep"));
  EXPECT_THAT(render("{% set n = namespace() %}{% set n.n = n %}"), HasSubstr("part of itself"));
  EXPECT_THAT(render("\n{% include 'x' %}"), HasSubstr("line 2"));
  EXPECT_THAT(render("{{ ''.__class__ }}{{ x() }}"), HasSubstr("not a supported function"));
  EXPECT_THAT(render("{{ 1 // 0 }}"), HasSubstr("divides by zero"));
  EXPECT_THAT(render("{{ strftime_now('%Y') }}"),
              HasSubstr("line 1 of the chat template prints a date (strftime_now), and none is "
                        "given\n  try: dataset.chat_date="));
}

TEST(MakeTokenizer, TakesTheKeysThatFitItsType) {
  EXPECT_EQ(make_tokenizer({})->name(), "bytes");
  EXPECT_EQ(make_tokenizer({.path = (kTokenizerFiles / "gpt2.json").string()})->name(),
            "huggingface");
  EXPECT_EQ(make_tokenizer({.path = (kTokenizerFiles / "spm_bpe.model").string()})->name(),
            "sentencepiece");
  EXPECT_EQ(make_tokenizer({.path = (kTokenizerFiles / "o200k_small.tiktoken").string()})->name(),
            "o200k");
  const auto numbers = make_tokenizer({.type = TokenizerType::kNull, .vocab_size = 10});
  std::vector<int32_t> ids;
  numbers->encode(" 3 9\n1", ids);
  EXPECT_THAT(ids, ElementsAre(3, 9, 1));
  EXPECT_EQ(numbers->eod(), 10);
  EXPECT_THROW(numbers->encode("10", ids), DataError);
  const std::string gpt2 = (kTokenizerFiles / "gpt2.json").string();
  EXPECT_EQ(make_tokenizer({.path = gpt2, .eod = "<s>"})->eod(), 1);
  EXPECT_THAT(message_of([&] { make_tokenizer({.path = gpt2, .eod = "<x>"}); }), HasSubstr("<x>"));
  EXPECT_THROW(make_tokenizer({.type = TokenizerType::kBytes, .path = gpt2}), ConfigError);
  EXPECT_THROW(make_tokenizer({.type = TokenizerType::kNull}), ConfigError);
  EXPECT_THROW(make_tokenizer({.type = TokenizerType::kTiktoken}), ConfigError);
  EXPECT_THROW(make_tokenizer({.path = gpt2, .vocab_size = 5}), ConfigError);
  EXPECT_THROW(make_tokenizer({.path = "/nowhere/tokenizer.json"}), DataError);
  const std::string ranks = (kTokenizerFiles / "cl100k_small.tiktoken").string();
  const auto words = make_tokenizer({.path = ranks, .pattern = "[^ ]+| "});
  ids.clear();
  words->encode("a  b", ids);
  EXPECT_EQ(ids.size(), 4u);
}

TEST(RawText, IsTheStreamOfItsDocumentsTokens) {
  const TemporaryFolder temporary;
  const fs::path folder = temporary.path();
  std::ofstream file(folder / "corpus.jsonl");
  const auto tokenizer = make_tokenizer({.path = (kTokenizerFiles / "llama3.json").string()});
  std::mt19937_64 random(4);
  std::vector<int64_t> expected;
  for (int i = 0; i < 50; ++i) {
    const std::string text = random_text(random) + "word number " + std::to_string(i);
    file << dump_json(Json{{"text", text}}) << "\n";
    std::vector<int32_t> ids;
    tokenizer->encode(text, ids);
    expected.insert(expected.end(), ids.begin(), ids.end());
    expected.push_back(tokenizer->eod());
  }
  file.close();
  const Corpus corpus({.path = (folder / "corpus.jsonl").string()}, tokenizer);
  std::vector<int64_t> stream(static_cast<size_t>(corpus.size_tokens()));
  corpus.copy(0, corpus.size_tokens(), stream.data());
  EXPECT_EQ(stream, expected);
}

TEST(TokenizerConfig, KeepsTheTypeNullThroughYaml) {
  TokenizerConfig config, again;
  config::Violations violations;
  config::apply_override(config, "type=null", violations);
  config::apply_override(config, "vocab_size=7", violations);
  config::apply_yaml(again, config::to_yaml(config), "it", violations);
  EXPECT_TRUE(violations.empty());
  EXPECT_EQ(again.type, TokenizerType::kNull);
  TokenizerConfig plain;
  config::apply_yaml(plain, "type: null\nvocab_size: 7\n", "it", violations);
  EXPECT_TRUE(violations.empty());
  EXPECT_EQ(plain.type, TokenizerType::kNull);
  EXPECT_EQ(make_tokenizer(again)->vocab_size(), 8);
}

TEST(OpenTokenizer, ReadsAFolderAsItIs) {
  const TemporaryFolder temporary;
  const fs::path folder = temporary.path();
  EXPECT_THAT(message_of([&] { open_tokenizer({.path = folder}); }), HasSubstr("no tokenizer"));
  const Json gpt2 = read_json(kTokenizerFiles / "gpt2.json");
  std::ofstream(folder / "vocab.json") << dump_json(gpt2["model"]["vocab"]);
  std::ofstream merges(folder / "merges.txt");
  merges << "#version: 0.2\n";
  for (const Json& merge : gpt2["model"]["merges"])
    merges << merge[0].get<std::string>() << " " << merge[1].get<std::string>() << "\n";
  merges.close();
  const auto pair = open_tokenizer({.path = folder});
  const auto one = open_tokenizer({.path = kTokenizerFiles / "gpt2.json"});
  std::vector<int32_t> a, b;
  pair->encode("the training of tokens <|endoftext|>", a);
  one->encode("the training of tokens <|endoftext|>", b);
  EXPECT_EQ(a, b);
  EXPECT_EQ(pair->name(), "gpt2");

  fs::copy(kTokenizerFiles / "llama3.json", folder / "tokenizer.json");
  std::ofstream(folder / "tokenizer_config.json")
      << R"({"eos_token": {"content": "<s>"}, "chat_template": "{{ bos_token }}"})";
  EXPECT_EQ(open_tokenizer({.path = folder})->eod(), 1);
  EXPECT_EQ(find_chat_template(folder), "{{ bos_token }}");
}

TEST(ByteTokenizerFiles, HaveTheTokensOfAnObjective) {
  for (const DatasetType type : {DatasetType::kText, DatasetType::kBert, DatasetType::kT5}) {
    const TemporaryFolder temporary;
    const DatasetConfig config{.type = type};
    const auto bytes = std::make_shared<ByteTokenizer>();
    const ObjectiveTokens tokens = objective_tokens(config, *bytes);
    for (const auto& [name, content] : byte_tokenizer_files(
             {.names = tokens.added, .before = tokens.before, .behind = tokens.behind}))
      std::ofstream(temporary.path() / name) << content;
    const auto read = open_tokenizer({.path = temporary.path()}),
               own = with_objective_tokens(bytes, config);
    EXPECT_EQ(read->vocab_size(), own->vocab_size());
    EXPECT_EQ(read->eod(), own->eod());
    for (const std::string text : {"", "caf\u00e9", "a[MASK]b<extra_id_3>"}) {
      std::vector<int32_t> a, b;
      read->encode_with_special(text, a);
      own->encode_with_special(text, b);
      EXPECT_EQ(a, b) << text;
    }
  }
}

} // namespace
} // namespace pentatron::data
