#include <algorithm>
#include <functional>
#include <map>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "pentatron/base/json.h"
#include "pentatron/config/config.h"
#include "pentatron/data/dataset.h"
#include "pentatron/data/gpt/fill_in_the_middle.h"
#include "pentatron/data/indexed/indexed_writer.h"
#include "pentatron/data/loader.h"
#include "tests/data/data_files.h"
#include "tests/data/megatron_files.h"
#include "tests/data/token_batches.h"

namespace pentatron::data {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<int64_t> sample_of(const Dataset& dataset, int64_t n) {
  std::vector<int64_t> tokens(static_cast<size_t>(dataset.sequence_length() + 1));
  tokens_of(dataset).sample(n, tokens.data());
  return tokens;
}

class OpenIndexed : public testing::Test {
 protected:
  OpenIndexed() {
    for (const char* name : {"corpus_a", "corpus_b"}) {
      for (const char* ending : {".bin", ".idx"})
        std::filesystem::copy(megatron_file(std::string(name) + ending),
                              folder.path() / (name[7] + std::string(ending)));
    }
  }
  std::string at(const std::string& name) const { return folder.string() + "/" + name; }
  /// "0.3 a 0.7 b" with the folder before each name.
  std::string paths(const std::string& text) const {
    std::string out;
    for (const char c : text) {
      if (c == 'a' || c == 'b') out += folder.string() + "/";
      out += c;
    }
    return out;
  }
  static DatasetConfig megatron(const std::string& path = "") {
    return {.type = DatasetType::kIndexed, .path = path, .order = SampleOrder::kMegatron};
  }
  TemporaryFolder folder;
};

std::optional<int64_t> optional_of(const Json& value) {
  return value.is_null() ? std::nullopt : std::optional(value.get<int64_t>());
}

TEST_F(OpenIndexed, DrawsWhatMegatronsBuilderDraws) {
  const Json cases = read_json(megatron_file("expected_blends.json"));
  ASSERT_GE(cases.size(), 12u);
  for (const Json& c : cases) {
    DatasetConfig config = megatron();
    config.seed = c["seed"];
    if (c.contains("path")) {
      config.path = paths(c["path"].get<std::string>());
      config.split = c["split"];
    } else {
      const auto of = [&](size_t i) {
        return c["paths"][i].is_null() ? "" : paths(c["paths"][i].get<std::string>());
      };
      config.train_data_path = of(0);
      config.valid_data_path = of(1);
      config.test_data_path = of(2);
    }
    const Datasets sets = open_datasets(config, {.sequence_length = c["S"],
                                                 .vocab_size = 130'000,
                                                 .train_samples = optional_of(c["sizes"][0]),
                                                 .validation_samples = optional_of(c["sizes"][1]),
                                                 .test_samples = optional_of(c["sizes"][2])});
    const std::map<std::string, std::shared_ptr<const Dataset>> parts{
        {"train", sets.train}, {"validation", sets.validation}, {"test", sets.test}};
    for (const auto& [name, dataset] : parts) {
      if (!c["parts"].contains(name) || c["parts"][name]["count"] == 0) continue;
      ASSERT_NE(dataset, nullptr) << c << name;
      EXPECT_EQ(dataset->size(), c["parts"][name]["count"].get<int64_t>()) << c << name;
      for (const auto& [n, tokens] : c["parts"][name]["tokens"].items()) {
        EXPECT_EQ(sample_of(*dataset, std::stoll(n)), tokens.get<std::vector<int64_t>>())
            << c["sizes"] << name << n;
      }
    }
  }
}

TEST_F(OpenIndexed, PathsMayStandInFilesAndLists) {
  const DatasetContext context{.sequence_length = 16,
                               .vocab_size = 130'000,
                               .train_samples = 100,
                               .validation_samples = 20,
                               .test_samples = 0};
  DatasetConfig direct = megatron(paths("0.3 a 0.7 b"));
  const Datasets expected = open_datasets(direct, context);
  const std::string quoted = "[0.3, \"" + at("a") + "\", 0.7, \"" + at("b") + "\"]";
  const std::string object = "{\"train\": " + quoted + ", \"valid\": [\"" + at("b") + "\"]}";
  for (const std::string& path :
       {quoted, folder.write("list.json", quoted),
        folder.write("list.yaml", "- 0.3\n- " + at("a") + "\n- 0.7\n- " + at("b")),
        folder.write("words.txt", paths("0.3 a\n0.7 b\n"))}) {
    direct.path = path;
    const Datasets sets = open_datasets(direct, context);
    for (const int64_t n : {0, 1, 50}) {
      EXPECT_EQ(sample_of(*sets.train, n), sample_of(*expected.train, n)) << path;
      EXPECT_EQ(sample_of(*sets.validation, n % 20), sample_of(*expected.validation, n % 20));
    }
  }
  // An object has the parts: the whole of each corpus, whatever the split.
  DatasetConfig parts = megatron();
  parts.train_data_path = quoted;
  parts.valid_data_path = at("b") + ".idx";
  const Datasets of_keys = open_datasets(parts, context);
  DatasetConfig file = megatron();
  file.per_split_data_args_path = folder.write("parts.json", object);
  const Datasets of_file = open_datasets(file, context);
  const Datasets of_path = open_datasets(megatron(folder.write("parts2.json", object)), context);
  for (const int64_t n : {0, 1, 50, 99}) {
    EXPECT_EQ(sample_of(*of_keys.train, n), sample_of(*of_file.train, n));
    EXPECT_EQ(sample_of(*of_keys.train, n), sample_of(*of_path.train, n));
    EXPECT_EQ(sample_of(*of_keys.validation, n % 20), sample_of(*of_file.validation, n % 20));
  }
  EXPECT_EQ(of_keys.test, nullptr);
  const Datasets of_yaml = open_datasets(
      megatron(folder.write("parts.yaml", "train: " + quoted + "\nvalid: [" + at("b") + "]\n")),
      context);
  EXPECT_EQ(sample_of(*of_yaml.train, 3), sample_of(*of_keys.train, 3));
  EXPECT_EQ(sample_of(*of_yaml.validation, 3), sample_of(*of_keys.validation, 3));
  for (const char* bad : {"{\"train\": [\"a\"], \"valide\": []}", "{\"valid\": [\"a\"]}",
                          "[1, [2]]", "3", "{\"train\": {\"a\": 1}}", "[]"})
    EXPECT_THROW(open_datasets(megatron(folder.write("bad.json", bad)), context), Error) << bad;
}

TEST_F(OpenIndexed, StableOrderIsThatOfTheSameTextReadDirectly) {
  std::string lines;
  for (int i = 0; i < 300; ++i)
    lines += "{\"text\": \"" +
             std::string(static_cast<size_t>(1 + i * 37 % 90), static_cast<char>('a' + i % 26)) +
             "\"}\n";
  const std::string text = folder.write("text.jsonl", lines);
  const auto tokenizer = make_tokenizer({});
  {
    IndexedWriter writer(at("text"), {});
    const Corpus corpus({.path = text}, tokenizer);
    for (int64_t d = 0; d < corpus.num_documents(); ++d) {
      std::vector<int64_t> tokens(
          static_cast<size_t>(corpus.document_begin(d + 1) - corpus.document_begin(d)));
      corpus.copy(corpus.document_begin(d), static_cast<int64_t>(tokens.size()), tokens.data());
      writer.add_sequence(std::vector<int32_t>(tokens.begin(), tokens.end()));
      writer.end_document();
    }
    writer.commit();
  }
  const DatasetContext context{.sequence_length = 32, .vocab_size = 257, .tokenizer = tokenizer};
  const Datasets direct = open_datasets({.path = text, .split = "80,15,5"}, context);
  const Datasets indexed = open_datasets(
      {.type = DatasetType::kIndexed, .path = at("text"), .split = "80,15,5"}, context);
  for (int64_t n = 0; n < 3 * direct.train->samples_per_epoch(); ++n)
    ASSERT_EQ(sample_of(*direct.train, n), sample_of(*indexed.train, n)) << n;
  for (int64_t n = 0; n < 2 * direct.validation->samples_per_epoch(); ++n)
    ASSERT_EQ(sample_of(*direct.validation, n), sample_of(*indexed.validation, n)) << n;
}

TEST_F(OpenIndexed, StableOrderDoesNotDependOnTheLengthOfTheRun) {
  for (const char* path : {"a", "a b", "0.3 a 0.7 b"}) {
    DatasetConfig config = megatron(paths(path));
    config.order = SampleOrder::kStable;
    const auto open = [&](std::optional<int64_t> samples) {
      return open_datasets(config,
                           {.sequence_length = 16, .vocab_size = 130'000, .train_samples = samples})
          .train;
    };
    const auto shorter = open(10), longer = open(100'000);
    EXPECT_EQ(shorter->size(), std::nullopt);
    for (int64_t n = 0; n < 300; ++n) ASSERT_EQ(sample_of(*shorter, n), sample_of(*longer, n));
    // Megatron's does.
    config.order = SampleOrder::kMegatron;
    if (path != std::string("a b")) { // without weights one epoch of each is all there is
      EXPECT_NE(sample_of(*open(10), 0), sample_of(*open(3000), 0));
    }
  }
}

TEST_F(OpenIndexed, EveryWindowOfAStableEpochComesOnce) {
  DatasetConfig config = megatron(at("a"));
  config.order = SampleOrder::kStable;
  config.split = "100";
  const auto train = open_datasets(config, {.sequence_length = 16, .vocab_size = 130'000}).train;
  std::multiset<std::vector<int64_t>> first, second;
  for (int64_t n = 0; n < train->samples_per_epoch(); ++n) {
    first.insert(sample_of(*train, n));
    second.insert(sample_of(*train, n + train->samples_per_epoch()));
  }
  EXPECT_EQ(first, second);
  EXPECT_EQ(std::set(first.begin(), first.end()).size(), first.size());
}

TEST_F(OpenIndexed, ValidationSetsMayBeSeveralAndWhole) {
  DatasetConfig config = megatron();
  config.train_data_path = at("a");
  config.valid_data_path = paths("a b");
  config.multiple_validation_sets = true;
  config.full_validation = true;
  const DatasetContext context{.sequence_length = 16,
                               .vocab_size = 130'000,
                               .train_samples = 10,
                               .validation_samples = 7,
                               .test_samples = 7};
  const Datasets sets = open_datasets(config, context);
  ASSERT_EQ(sets.validation_sets.size(), 2u);
  EXPECT_EQ(sets.validation_sets[0].name, "a");
  EXPECT_EQ(sets.validation_sets[1].name, "b");
  EXPECT_EQ(sets.validation, sets.validation_sets[0].dataset);
  EXPECT_EQ(sets.validation_sets[0].dataset->size(), (1608 - 1) / 16); // tokens of corpus_a
  EXPECT_EQ(sets.validation_sets[1].dataset->size(), (1617 - 1) / 16);
  EXPECT_EQ(sets.test, nullptr);
  config.drop_last_partial_validation_sequence = false;
  EXPECT_EQ(open_datasets(config, context).validation->size(), 1607 / 16 + 1);
  config.full_validation = false;
  config.drop_last_partial_validation_sequence = true;
  EXPECT_EQ(open_datasets(config, context).validation->size(), (1608 - 1) / 16);
  config.valid_data_path = paths("1 a 2 b");
  EXPECT_THAT(error_of<ConfigError>([&] { open_datasets(config, context); }),
              HasSubstr("cannot have weights"));
  config.multiple_validation_sets = false;
  config.full_validation = true;
  EXPECT_THAT(error_of<ConfigError>([&] { open_datasets(config, context); }),
              HasSubstr("dataset.full_validation=false"));
}

TEST_F(OpenIndexed, APartWithoutASampleIsNullAndTold) {
  DatasetConfig config = megatron(at("a"));
  config.split = "98,2";
  const Datasets sets = open_datasets(config, {.sequence_length = 64, .vocab_size = 130'000});
  EXPECT_EQ(sets.validation, nullptr);
  EXPECT_THAT(sets.summary, HasSubstr("no validation data of"));
  config.split = "0,1";
  EXPECT_THAT(error_of<ConfigError>(
                  [&] { open_datasets(config, {.sequence_length = 64, .vocab_size = 130'000}); }),
              HasSubstr("the training data is less than one sample"));
  config.path = paths("1 a 1 b");
  config.split = "98,2";
  EXPECT_EQ(
      open_datasets(config, {.sequence_length = 64, .vocab_size = 130'000, .train_samples = 3})
          .validation,
      nullptr);
  config.order = SampleOrder::kStable;
  config.split = "50,50";
  IndexedWriter writer(at("tiny"), {.dtype = IndexedDtype::kI32});
  for (int i = 0; i < 4; ++i) {
    writer.add_sequence(std::vector<int32_t>(30, 7));
    writer.end_document();
  }
  writer.commit();
  config.path = "1 " + at("a") + " 1 " + at("tiny");
  EXPECT_THAT(error_of<ConfigError>(
                  [&] { open_datasets(config, {.sequence_length = 64, .vocab_size = 130'000}); }),
              HasSubstr("tiny has a weight, but less than one sample of train data"));
}

// --- fill in the middle -------------------------------------------------------------------------

class FillInTheMiddle : public testing::Test {
 protected:
  FillInTheMiddle() {
    std::string lines;
    for (int i = 0; i < 200; ++i) {
      std::string text;
      for (int k = 0; k < 10 + i * 7 % 50; ++k) text += k % 5 == 0 ? "\u00e9" : "abcd";
      lines += "{\"text\": \"" + text + std::to_string(i) + "\"}\n";
    }
    config.path = folder.write("a.jsonl", lines);
    config.split = "100";
    plain = open_datasets(config, context).train;
    config.fim_rate = 0.5;
    config.fim_prefix_token = 257;
    config.fim_middle_token = 258;
    config.fim_suffix_token = 259;
    config.fim_pad_token = 260;
  }
  TemporaryFolder folder;
  DatasetConfig config;
  const DatasetContext context{
      .sequence_length = 256, .vocab_size = 261, .tokenizer = make_tokenizer({})};
  std::shared_ptr<const Dataset> plain;
};

TEST_F(FillInTheMiddle, RearrangesDocumentsAndKeepsTheirBytes) {
  const auto train = open_datasets(config, context).train;
  int documents = 0, rearranged = 0, suffix_first = 0;
  for (int64_t n = 0; n < 60; ++n) {
    const std::vector<int64_t> before = sample_of(*plain, n), after = sample_of(*train, n);
    ASSERT_EQ(before.size(), after.size());
    size_t begin = 0;
    while (begin < before.size()) {
      const size_t end = static_cast<size_t>(
          std::find(before.begin() + static_cast<long>(begin), before.end(), 256) - before.begin());
      if (end < before.size()) {
        EXPECT_EQ(after[end], 256);
      }
      const std::vector<int64_t> was(before.begin() + static_cast<long>(begin),
                                     before.begin() + static_cast<long>(end));
      const std::vector<int64_t> is(after.begin() + static_cast<long>(begin),
                                    after.begin() + static_cast<long>(end));
      documents += !was.empty();
      if (!is.empty() && is[0] == 257) {
        ++rearranged;
        // prefix, suffix and middle again from the marks, and put together.
        const auto suffix_at = std::find(is.begin(), is.end(), 259);
        const auto middle_at = std::find(is.begin(), is.end(), 258);
        ASSERT_TRUE(suffix_at != is.end() && middle_at != is.end());
        const bool spm = suffix_at == is.begin() + 1 && was.size() > 3;
        suffix_first += spm;
        std::vector<int64_t> together;
        if (spm) {
          together.assign(middle_at + 1, is.end()); // prefix and middle
          together.insert(together.end(), suffix_at + 1, middle_at);
        } else {
          together.assign(is.begin() + 1, suffix_at);
          together.insert(together.end(), middle_at + 1, is.end());
          together.insert(together.end(), suffix_at + 1, middle_at);
        }
        // Three tokens of the suffix made room for the marks.
        EXPECT_EQ(together, std::vector<int64_t>(was.begin(), was.end() - 3));
      } else {
        EXPECT_EQ(was, is);
      }
      begin = end + 1;
    }
  }
  EXPECT_GT(documents, 100);
  EXPECT_NEAR(rearranged, documents * 0.5, documents * 0.2);
  EXPECT_NEAR(suffix_first, rearranged * 0.5, rearranged * 0.25);
}

/// Writes "aa" as one token of its own.
class PairTokenizer final : public Tokenizer {
 public:
  std::string name() const override { return "pairs"; }
  int64_t vocab_size() const override { return 258; }
  int32_t eod() const override { return 256; }
  void encode(std::string_view text, std::vector<int32_t>& tokens) const override {
    for (size_t i = 0; i < text.size(); ++i) {
      const bool pair = text.substr(i, 2) == "aa";
      tokens.push_back(pair ? 257 : static_cast<unsigned char>(text[i]));
      i += pair;
    }
  }
  std::string decode(std::span<const int64_t> tokens) const override {
    std::string text;
    for (const int64_t token : tokens)
      text += token == 257 ? "aa" : std::string(1, static_cast<char>(token));
    return text;
  }
  std::string token_name(int64_t id) const override { return std::to_string(id); }
};

TEST_F(FillInTheMiddle, WhatFewerTokensLeaveFreeIsPaddedWithoutALoss) {
  // Samples of single a's, which are encoded again in pairs.
  class Letters final : public TokenDataset {
   public:
    int64_t sequence_length() const override { return 63; }
    void sample(int64_t, int64_t* tokens) const override { std::fill(tokens, tokens + 64, 'a'); }
  };
  const FillInTheMiddleDataset fim(
      std::make_shared<Letters>(), std::make_shared<PairTokenizer>(),
      {.rate = 1, .prefix_token = 300, .middle_token = 301, .suffix_token = 302, .pad_token = 303});
  for (int64_t n = 0; n < 20; ++n) {
    const int64_t ids[] = {n};
    const Batch batch = token_batch(fim, ids);
    EXPECT_EQ(batch.ints("input_ids")[0], 300);
    std::vector<int64_t> tokens(64);
    fim.sample(n, tokens.data());
    int64_t padding = 0;
    for (size_t i = 0; i < 63; ++i) {
      padding += tokens[i + 1] == 303;
      EXPECT_EQ(batch.ints("labels")[i], tokens[i + 1] == 303 ? -100 : tokens[i + 1]);
    }
    EXPECT_GE(padding, 64 - 3 - 34);
  }
}

TEST_F(FillInTheMiddle, DependsOnTheSampleAloneAndOnItsKeys) {
  const auto train = open_datasets(config, context).train;
  const std::vector<int64_t> fifth = sample_of(*train, 5);
  for (int64_t n = 20; n >= 0; --n) sample_of(*train, n);
  EXPECT_EQ(sample_of(*train, 5), fifth);
  const auto first_ten = [&](const DatasetConfig& c) {
    std::vector<std::vector<int64_t>> all;
    const auto set = open_datasets(c, context).train;
    for (int64_t n = 0; n < 10; ++n) all.push_back(sample_of(*set, n));
    return all;
  };
  const auto base = first_ten(config);
  for (const auto& change : std::vector<std::function<void(DatasetConfig&)>>{
           [](DatasetConfig& c) { c.fim_rate = 1; }, [](DatasetConfig& c) { c.fim_spm_rate = 0; },
           [](DatasetConfig& c) { std::swap(c.fim_prefix_token, c.fim_middle_token); },
           [](DatasetConfig& c) { std::swap(c.fim_prefix_token, c.fim_suffix_token); }}) {
    DatasetConfig other = config;
    change(other);
    EXPECT_NE(first_ten(other), base);
  }
  DatasetConfig big = config;
  big.fim_pad_token = 1000;
  EXPECT_THAT(error_of<ConfigError>([&] { open_datasets(big, context); }),
              HasSubstr("uses token 1000"));
}

// An end token that the model does not have occurs nowhere, so the keys would do nothing.
TEST_F(OpenIndexed, KeysOfDocumentEndsNeedATokenThatCanOccur) {
  DatasetContext context{.sequence_length = 8, .vocab_size = 131};
  context.tokenizer = make_tokenizer({});
  DatasetConfig config = megatron(at("a"));
  EXPECT_NO_THROW(open_datasets(config, context));
  config.reset_attention_mask = true;
  EXPECT_THAT(error_of<ConfigError>([&] { open_datasets(config, context); }),
              AllOf(HasSubstr("dataset.reset_attention_mask=true needs the token that ends "
                              "documents, but that of the tokenizer is 256"),
                    HasSubstr("try: tokenizer.path=FILE_OR_FOLDER")));
  context.tokenizer = make_tokenizer({.type = TokenizerType::kNull, .vocab_size = 130});
  EXPECT_NO_THROW(open_datasets(config, context));
}

// --- rules between the keys --------------------------------------------------------------------

TEST(DatasetRules, KeysWithoutEffectAreRefused) {
  const auto problems = [](DatasetConfig config) {
    pentatron::config::Violations violations;
    config.validate(violations, "dataset");
    return violations.text();
  };
  const auto indexed = [](DatasetConfig c = {}) {
    c.type = DatasetType::kIndexed;
    return c;
  };
  EXPECT_EQ(problems({}), problems(indexed({.path = "a"})));
  EXPECT_THAT(problems({.order = SampleOrder::kMegatron}), HasSubstr("dataset.order=megatron"));
  EXPECT_THAT(problems({.train_data_path = "a"}), HasSubstr("dataset.train_data_path=a"));
  EXPECT_THAT(problems({.per_split_data_args_path = "a"}), HasSubstr("per_split_data_args_path=a"));
  EXPECT_THAT(problems(indexed()), HasSubstr("none is given"));
  EXPECT_THAT(problems(indexed({.path = "a", .train_data_path = "b"})),
              HasSubstr("more are given"));
  EXPECT_THAT(problems(indexed({.path = "a", .multiple_validation_sets = true})),
              HasSubstr("dataset.multiple_validation_sets=true"));
  EXPECT_THAT(problems(indexed({.path = "a", .data_cache_path = "b"})),
              HasSubstr("dataset.data_cache_path=b"));
  EXPECT_THAT(problems(indexed({.path = "a", .drop_last_partial_validation_sequence = false})),
              HasSubstr("drop_last_partial_validation_sequence=false"));
  EXPECT_THAT(problems({.fim_rate = 0.5}), HasSubstr("needs four different tokens"));
  EXPECT_THAT(problems({.type = DatasetType::kMock, .fim_rate = 0.5}), HasSubstr("no effect"));
}

} // namespace
} // namespace pentatron::data
