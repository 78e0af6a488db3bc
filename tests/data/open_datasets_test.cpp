#include <cmath>
#include <cstring>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "pentatron/base/safetensors.h"
#include "pentatron/config/config.h"
#include "pentatron/data/dataset.h"
#include "pentatron/data/entropy.h"
#include "pentatron/data/loader.h"
#include "tests/data/data_files.h"
#include "tests/data/token_batches.h"

namespace pentatron::data {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class OpenDatasets : public ::testing::Test {
 protected:
  std::string write_batches(std::vector<int64_t> shape, const std::vector<int64_t>& tokens,
                            const std::string& name = "tokens") {
    SafeTensor tensor{.dtype = SafeDtype::kI64,
                      .shape = std::move(shape),
                      .data = std::as_bytes(std::span(tokens))};
    const std::filesystem::path path = folder.path() / "batches.safetensors";
    write_safetensors(path, SafeTensors{{name, tensor}});
    return path.string();
  }
  TemporaryFolder folder;
};

TEST_F(OpenDatasets, StepIOfABatchesRunIsRowIOfTheFile) {
  std::vector<int64_t> tokens(3 * 4 * 6);
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<int64_t>(i);
  const DatasetConfig config{.type = DatasetType::kBatches,
                             .path = write_batches({3, 4, 6}, tokens)};
  const Datasets sets = open_datasets(config, {.vocab_size = 72});
  EXPECT_EQ(sets.train->sequence_length(), 5);
  EXPECT_EQ(sets.file_batch_size, 4);
  EXPECT_EQ(sets.validation, nullptr);
  Loader loader(sets.train, {.global_batch_size = 4, .micro_batch_size = 4});
  for (int64_t step = 0; step < 3; ++step) {
    const Batch batch = std::move(loader.next().microbatches[0]);
    for (int64_t r = 0; r < 4; ++r) {
      for (int64_t i = 0; i < 5; ++i) {
        EXPECT_EQ(batch.ints("input_ids")[static_cast<size_t>(5 * r + i)], 24 * step + 6 * r + i);
        EXPECT_EQ(batch.ints("labels")[static_cast<size_t>(5 * r + i)], 24 * step + 6 * r + i + 1);
      }
    }
  }
  EXPECT_THAT(error_of<DataError>([&] { loader.next(); }), HasSubstr("try: train.train_iters=3"));
}

TEST_F(OpenDatasets, BatchesAreCheckedBeforeTheyAreUsed) {
  const auto open = [&](const std::string& path, int64_t vocab = 10, int64_t s = 0) {
    return open_datasets({.type = DatasetType::kBatches, .path = path},
                         {.sequence_length = s, .vocab_size = vocab});
  };
  const std::vector<int64_t> tokens{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
  EXPECT_THAT(error_of<DataError>([&] {
                open(write_batches({2, 2, 3}, tokens));
              }),
              HasSubstr("tokens[1, 1, 0]=10 is outside the vocabulary (0 to 9)"));
  EXPECT_THAT(error_of<DataError>([&] {
                open(write_batches({4, 3}, tokens), 20);
              }),
              HasSubstr("tokens is I64 [4, 3], not [steps, batch, sequence + 1]"));
  EXPECT_THAT(error_of<DataError>([&] {
                open(write_batches({2, 6, 1}, tokens), 20);
              }),
              HasSubstr("contains no sample"));
  EXPECT_THAT(error_of<DataError>([&] {
                open(write_batches({2, 2, 3}, tokens, "token"), 20);
              }),
              AllOf(HasSubstr("has no tensor input_ids [steps, batch, sequence]"),
                    HasSubstr("it has token [2, 2, 3]")));
  EXPECT_THAT(error_of<ConfigError>([&] {
                open(write_batches({2, 2, 3}, tokens), 20, 64);
              }),
              HasSubstr("try: a sequence length of 2"));
  EXPECT_THROW(open(folder.string() + "/none.safetensors"), Error);
  EXPECT_THAT(error_of<ConfigError>(
                  [&] { open_datasets({.type = DatasetType::kBatches}, {.vocab_size = 9}); }),
              HasSubstr("needs a file"));
}

TEST_F(OpenDatasets, BatchesMayHaveAFileForValidation) {
  std::vector<int64_t> tokens(3 * 4 * 6, 1);
  DatasetConfig config{.type = DatasetType::kBatches, .path = write_batches({3, 4, 6}, tokens)};
  std::filesystem::rename(config.path, folder.path() / "train.safetensors");
  config.path = folder.string() + "/train.safetensors";
  tokens.assign(2 * 3 * 6, 2);
  config.valid_data_path = write_batches({2, 3, 6}, tokens);
  Datasets sets = open_datasets(config, {.vocab_size = 72});
  ASSERT_NE(sets.validation, nullptr);
  EXPECT_EQ(sets.validation->size(), 6);
  EXPECT_EQ(make_batch(*sets.validation, std::vector<int64_t>{5}).ints("input_ids")[0], 2);
  EXPECT_EQ(sets.file_batch_size, 4);
  EXPECT_EQ(sets.files.size(), 2u);
  EXPECT_THAT(sets.summary, HasSubstr("validation: 6 samples"));
  config.multiple_validation_sets = true;
  sets = open_datasets(config, {.vocab_size = 72});
  EXPECT_EQ(sets.validation_sets.at(0).name, "batches.safetensors");
  pentatron::config::Violations violations;
  pentatron::config::validate(config, violations);
  EXPECT_EQ(violations.text(), "");
  config.test_data_path = config.valid_data_path;
  pentatron::config::validate(config, violations);
  EXPECT_THAT(violations.text(), HasSubstr("has no effect"));
  write_batches({2, 2, 9}, tokens);
  EXPECT_THAT(error_of<ConfigError>([&] { open_datasets(config, {.vocab_size = 72}); }),
              AllOf(HasSubstr("batches.safetensors has sequences of 8 tokens"),
                    HasSubstr("train.safetensors has sequences of 5 tokens")));
}

TEST_F(OpenDatasets, TextIsSplitIntoPartsThatDoNotOverlap) {
  folder.write("a.txt", std::string(10'000, 'a'));
  const DatasetConfig config{.path = folder.string(), .split = "90,9,1"};
  const DatasetContext context{
      .sequence_length = 128, .vocab_size = 257, .tokenizer = make_tokenizer({})};
  const Datasets sets = open_datasets(config, context);
  EXPECT_EQ(sets.train->samples_per_epoch(), (sets.split.train.size() - 1) / 128);
  ASSERT_NE(sets.validation, nullptr);
  EXPECT_EQ(sets.test, nullptr);
  EXPECT_THAT(sets.summary, HasSubstr("no test data: 100 tokens, less than one sample"));
  const auto& validation = dynamic_cast<const TextDataset&>(tokens_of(*sets.validation));
  for (int64_t n = 0; n < 30; ++n) {
    EXPECT_GE(validation.sample_begin(n), sets.split.train.end);
    EXPECT_LE(validation.sample_begin(n) + 129, sets.split.validation.end);
  }
  EXPECT_THAT(error_of<ConfigError>([&] {
                open_datasets(
                    config,
                    {.sequence_length = 8, .vocab_size = 256, .tokenizer = make_tokenizer({})});
              }),
              HasSubstr("try: model.vocab_size=257"));
}

TEST_F(OpenDatasets, MockTokensAreUniformAndRepeatable) {
  const Datasets sets =
      open_datasets({.type = DatasetType::kMock}, {.sequence_length = 999, .vocab_size = 10});
  std::vector<int64_t> a(1000), b(1000);
  std::vector<int> counts(10);
  for (int64_t n = 0; n < 10; ++n) {
    tokens_of(*sets.train).sample(n, a.data());
    tokens_of(*sets.train).sample(n, b.data());
    EXPECT_EQ(a, b);
    for (const int64_t t : a) ++counts.at(static_cast<size_t>(t));
  }
  for (const int c : counts) EXPECT_NEAR(c, 1000, 150);
}

TEST_F(OpenDatasets, UnigramEntropyIsThatOfTheFrequencies) {
  folder.write("a.txt", "aabbcccc"); // with the end: 2, 2, 4, 1 of 9
  const Corpus corpus({.path = folder.string()}, make_tokenizer({}));
  const auto term = [](double k) { return -k / 9 * std::log(k / 9); };
  EXPECT_NEAR(unigram_entropy(corpus, {0, 9}, 257), 2 * term(2) + term(4) + term(1), 1e-14);
  EXPECT_NEAR(unigram_entropy(corpus, {0, 4}, 257), std::log(2.0), 1e-14);
  EXPECT_EQ(unigram_entropy(corpus, {4, 4}, 257), 0);
}

TEST(DatasetConfig, ReadsItsKeysFromYamlAndOverrides) {
  DatasetConfig config;
  pentatron::config::Violations violations;
  pentatron::config::apply_yaml(config, "type: batches\npath: a.txt,b\non_bad_input: skip\n",
                                "test.yaml", violations);
  pentatron::config::apply_override(config, "max_line_bytes=1000", violations);
  pentatron::config::validate(config, violations);
  EXPECT_TRUE(violations.empty()) << violations.text();
  EXPECT_EQ(config.type, DatasetType::kBatches);
  EXPECT_EQ(config.path, "a.txt,b");
  EXPECT_EQ(config.on_bad_input, OnBadInput::kSkip);
  EXPECT_EQ(config.max_line_bytes, 1000);
  pentatron::config::apply_override(config, "num_workers=0", violations);
  pentatron::config::validate(config, violations);
  EXPECT_THAT(violations.text(), HasSubstr("num_workers=0"));
}

TEST_F(OpenDatasets, APathMayBeSeveral) {
  const std::string a = folder.write("a.txt", "a"), b = folder.write("b.txt", "b"),
                    comma = folder.write("c,d.txt", "c");
  EXPECT_THAT(split_paths(a), ElementsAre(a));
  EXPECT_THAT(split_paths(a + "," + b), ElementsAre(a, b));
  EXPECT_THAT(split_paths("[" + a + ", " + b + "]"), ElementsAre(a, b));
  EXPECT_THAT(split_paths(comma), ElementsAre(comma));
  const Corpus corpus({.path = b + "," + a}, make_tokenizer({}));
  std::vector<int64_t> tokens(4);
  corpus.copy(0, 4, tokens.data());
  EXPECT_THAT(tokens, ElementsAre('b', 256, 'a', 256));
}

} // namespace
} // namespace pentatron::data
