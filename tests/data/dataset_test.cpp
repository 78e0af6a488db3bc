#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <numeric>
#include <set>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "pentatron/config/violations.h"
#include "pentatron/data/corpus.h"
#include "pentatron/data/dataset.h"
#include "pentatron/data/permutation.h"
#include "tests/data/data_files.h"

namespace pentatron::data {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::shared_ptr<const Tokenizer> bytes() {
  return std::make_shared<ByteTokenizer>();
}

std::vector<int64_t> stream_of(const Corpus& corpus) {
  std::vector<int64_t> tokens(static_cast<size_t>(corpus.size_tokens()));
  corpus.copy(0, corpus.size_tokens(), tokens.data());
  return tokens;
}

/// A tokenizer whose tokens depend on the whole document: what BPE is to bytes.
class WholeDocumentTokenizer final : public Tokenizer {
 public:
  std::string name() const override { return "whole"; }
  int64_t vocab_size() const override { return 100'000; }
  int32_t eod() const override { return 99'999; }
  void encode(std::string_view text, std::vector<int32_t>& tokens) const override {
    tokens.push_back(static_cast<int32_t>(text.size() % 90'000));
  }
  std::string decode(std::span<const int64_t>) const override { return {}; }
  std::string token_name(int64_t) const override { return "x"; }
};

TEST(ByteTokenizer, GivesEveryByteItsNumberAndDecodesItBack) {
  const ByteTokenizer tokenizer;
  std::string all(256, '\0');
  std::iota(all.begin(), all.end(), '\0');
  std::vector<int32_t> tokens{7};
  tokenizer.encode(all, tokens);
  ASSERT_EQ(tokens.size(), 257u);
  EXPECT_EQ(tokens[0], 7);
  std::vector<int64_t> ids(tokens.begin() + 1, tokens.end());
  for (int64_t i = 0; i < 256; ++i) EXPECT_EQ(ids[static_cast<size_t>(i)], i);
  ids.push_back(256);
  EXPECT_EQ(tokenizer.decode(ids), all);
  EXPECT_EQ(tokenizer.token_name('a'), "a");
  EXPECT_EQ(tokenizer.token_name('\n'), "<0x0A>");
  EXPECT_EQ(tokenizer.token_name(256), "<eod>");
  EXPECT_THROW(tokenizer.decode(std::vector<int64_t>{257}), DataError);
  EXPECT_THROW(tokenizer.decode(std::vector<int64_t>{-1}), DataError);
}

/// Encodes its n-th document when tell() was called n times.
class WaitingTokenizer final : public Tokenizer {
 public:
  std::string name() const override { return "waiting"; }
  int64_t vocab_size() const override { return 2; }
  int32_t eod() const override { return 1; }
  void encode(std::string_view, std::vector<int32_t>& tokens) const override {
    std::unique_lock lock(mutex_);
    const int needed = ++encoded_;
    EXPECT_TRUE(more_.wait_for(lock, std::chrono::seconds(60), [&] { return told_ >= needed; }))
        << "document " << needed;
    tokens.push_back(0);
  }
  std::string decode(std::span<const int64_t>) const override { return {}; }
  std::string token_name(int64_t) const override { return "x"; }

  void tell() const {
    const std::lock_guard lock(mutex_);
    ++told_;
    more_.notify_all();
  }

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable more_;
  mutable int encoded_ = 0, told_ = 0;
};

TEST(Corpus, TellsWhoWaitsForItThatReadingGoesOn) {
  const TemporaryFolder folder;
  const std::string document(2'000'000, 'x'); // more than is read at once
  folder.write("a.jsonl", "{\"text\":\"" + document + "\"}\n{\"text\":\"" + document + "\"}\n");
  const auto tokenizer = std::make_shared<WaitingTokenizer>();
  const Corpus corpus({.path = folder.string()}, tokenizer);
  corpus.wait({.working = [&] { tokenizer->tell(); }});
  EXPECT_THAT(stream_of(corpus), ElementsAre(0, 1, 0, 1));
}

TEST(Corpus, PutsAnEndAfterEachDocument) {
  const TemporaryFolder folder;
  folder.write("a.txt", "hi");
  folder.write("b.jsonl", "{\"text\":\"x\"}\n{\"text\":\"yz\"}\n");
  const Corpus corpus({.path = folder.string()}, bytes());
  EXPECT_THAT(stream_of(corpus), ElementsAre('h', 'i', 256, 'x', 256, 'y', 'z', 256));
  EXPECT_EQ(corpus.num_documents(), 3);
  EXPECT_EQ(corpus.document_begin(1), 3);
  EXPECT_EQ(corpus.document_begin(2), 5);
  EXPECT_EQ(corpus.document_begin(3), 8);
  EXPECT_THAT(corpus.report().to_string(),
              AllOf(HasSubstr("2 files, 3 documents, "), HasSubstr(" B of text, 8 tokens")));
}

TEST(Corpus, IsTheSameForAnyNumberOfThreads) {
  const TemporaryFolder folder;
  for (int i = 0; i < 40; ++i) {
    folder.write(
        fmt::format("{:02}.txt", i),
        std::string(static_cast<size_t>(1 + i * 7919 % 50'000), static_cast<char>('a' + i % 26)));
  }
  const Corpus one({.path = folder.string(), .num_workers = 1}, bytes());
  const Corpus many({.path = folder.string(), .num_workers = 8}, bytes());
  EXPECT_EQ(stream_of(one), stream_of(many));
  // Any part of it, also across files.
  const std::vector<int64_t> all = stream_of(one);
  for (int64_t begin = 0; begin + 60'000 < one.size_tokens(); begin += 37'003) {
    std::vector<int64_t> part(60'000);
    one.copy(begin, 60'000, part.data());
    EXPECT_TRUE(std::equal(part.begin(), part.end(), all.begin() + begin)) << begin;
  }
}

TEST(Corpus, GivesWholeDocumentsToTokenizersThatNeedThem) {
  const TemporaryFolder folder;
  folder.write("a.txt", std::string(1'000'000, 'a'));
  folder.write("b.txt", "bb");
  const Corpus corpus({.path = folder.string()}, std::make_shared<WholeDocumentTokenizer>());
  EXPECT_THAT(stream_of(corpus), ElementsAre(1'000'000 % 90'000, 99'999, 2, 99'999));
}

TEST(Corpus, ReportsTheFirstBadFileInOrder) {
  const TemporaryFolder folder;
  for (int i = 0; i < 30; ++i)
    folder.write(fmt::format("{:02}.txt", i), i == 11 || i == 12 || i == 29 ? "\xFF" : "good");
  for (int trial = 0; trial < 20; ++trial) {
    const Corpus corpus({.path = folder.string(), .num_workers = 8}, bytes());
    try {
      corpus.wait();
      FAIL();
    } catch (const DataError& error) {
      EXPECT_THAT(error.what(), HasSubstr("11.txt"));
    }
  }
  const Corpus skipping(
      {.path = folder.string(), .on_bad_input = OnBadInput::kSkip, .num_workers = 8}, bytes());
  EXPECT_EQ(skipping.num_documents(), 27);
  EXPECT_EQ(skipping.report().skipped(BadInput::kUtf8), 3);
  EXPECT_EQ(skipping.size_tokens(), 27 * 5);
}

TEST(Corpus, IsOneForAllThreadsAsLongAsItsFilesStay) {
  const TemporaryFolder folder;
  folder.write("a.txt", "good");
  const DatasetConfig config{.path = folder.string()};
  const auto tokenizer = shared_tokenizer({});
  EXPECT_EQ(shared_tokenizer({}), tokenizer);
  EXPECT_NE(shared_tokenizer({.type = TokenizerType::kNull, .vocab_size = 9}), tokenizer);
  std::vector<std::shared_ptr<const Corpus>> corpora(8);
  std::vector<std::thread> threads;
  for (auto& corpus : corpora)
    threads.emplace_back([&] { corpus = shared_corpus(config, tokenizer); });
  for (std::thread& thread : threads) thread.join();
  for (const auto& corpus : corpora) EXPECT_EQ(corpus, corpora[0]);
  EXPECT_NE(shared_corpus(config, tokenizer, Corpus::Cut::kSentences), corpora[0]);
  EXPECT_NE(shared_corpus(config, bytes()), corpora[0]) << "another tokenizer";
  EXPECT_NE(shared_corpus({.path = folder.string(), .max_line_bytes = 99}, tokenizer), corpora[0]);
  folder.write("b.txt", "more");
  EXPECT_EQ(shared_corpus(config, tokenizer)->num_documents(), 2);
  EXPECT_EQ(corpora[0]->num_documents(), 1);
  const std::weak_ptr<const Corpus> watch = corpora[0];
  corpora.clear();
  EXPECT_TRUE(watch.expired()) << "kept without use";
}

TEST(Corpus, ComesWithPentatron) {
  const std::filesystem::path folder = default_corpus();
  const Corpus corpus({}, bytes());
  EXPECT_EQ(corpus.num_documents(), 4);
  EXPECT_GT(corpus.size_tokens(), 2'000'000);
  EXPECT_LT(corpus.size_tokens(), 3'000'000);
  std::vector<int64_t> start(60);
  corpus.copy(0, 60, start.data());
  EXPECT_THAT(ByteTokenizer().decode(start), HasSubstr("EMMA\n\nBy Jane Austen"));
}

TEST(Permutation, IsABijectionForEverySize) {
  for (const uint64_t size : {1, 2, 3, 4, 5, 7, 8, 100, 1000, 4096, 4097}) {
    const Permutation permutation(3, "test", 0, size);
    std::vector<bool> seen(size);
    for (uint64_t i = 0; i < size; ++i) {
      const uint64_t to = permutation(i);
      ASSERT_LT(to, size);
      ASSERT_FALSE(seen[to]);
      seen[to] = true;
    }
  }
}

TEST(Permutation, IsAnotherForAnotherKeyAndLooksRandom) {
  constexpr uint64_t kSize = 5000;
  const Permutation base(3, "test", 0, kSize), seed(4, "test", 0, kSize),
      name(3, "other", 0, kSize), epoch(3, "test", 1, kSize);
  int same = 0;
  std::array<std::array<int, 10>, 10> counts{}; // from tenth to tenth of the range
  double sum = 0;
  for (uint64_t i = 0; i < kSize; ++i) {
    same += (base(i) == seed(i)) + (base(i) == name(i)) + (base(i) == epoch(i)) + (base(i) == i);
    ++counts[i * 10 / kSize][base(i) * 10 / kSize];
    sum += static_cast<double>(i) * static_cast<double>(base(i));
  }
  EXPECT_LT(same, 20); // four expected
  double chi2 = 0;
  for (const auto& row : counts) {
    for (const int n : row) chi2 += (n - 50.0) * (n - 50.0) / 50.0;
  }
  EXPECT_LT(chi2, 135); // 81 degrees of freedom: mean 81, deviation 12.7
  const double mean = (kSize - 1) / 2.0, variance = (double{kSize} * kSize - 1) / 12;
  EXPECT_LT(std::abs((sum / kSize - mean * mean) / variance), 0.07); // correlation, deviation 0.014
}

class Samples : public ::testing::Test {
 protected:
  Samples() {
    std::string text;
    for (int i = 0; i < 10'000; ++i) text += fmt::format("{:04x}", i * 40503 % 65536);
    folder.write("a.txt", text);
    corpus = std::make_shared<Corpus>(DatasetConfig{.path = folder.string()}, bytes());
  }
  std::vector<int64_t> sample(const TokenDataset& dataset, int64_t n) {
    std::vector<int64_t> tokens(static_cast<size_t>(dataset.sequence_length() + 1));
    dataset.sample(n, tokens.data());
    return tokens;
  }
  TemporaryFolder folder;
  std::shared_ptr<const Corpus> corpus;
};

TEST_F(Samples, EachEpochShowsEveryWindowOnceInAnotherOrder) {
  const TextDataset dataset(corpus, {0, corpus->size_tokens()}, {.sequence_length = 64, .seed = 5});
  const int64_t windows = (corpus->size_tokens() - 1) / 64;
  ASSERT_EQ(dataset.samples_per_epoch(), windows);
  const std::vector<int64_t> stream = stream_of(*corpus);
  std::vector<std::vector<int64_t>> orders;
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    std::vector<int64_t> begins;
    for (int64_t i = 0; i < windows; ++i) {
      const int64_t begin = dataset.sample_begin(epoch * windows + i);
      begins.push_back(begin);
      const std::vector<int64_t> tokens = sample(dataset, epoch * windows + i);
      ASSERT_TRUE(std::equal(tokens.begin(), tokens.end(), stream.begin() + begin));
    }
    orders.push_back(begins);
    std::sort(begins.begin(), begins.end());
    for (int64_t i = 0; i < windows; ++i) ASSERT_EQ(begins[static_cast<size_t>(i)], i * 64);
  }
  EXPECT_NE(orders[0], orders[1]);
  EXPECT_NE(orders[1], orders[2]);
}

TEST_F(Samples, ArePureFunctionsOfSeedAndNumber) {
  const Corpus again_corpus({.path = folder.string()}, bytes());
  const TextDataset a(corpus, {100, 30'000}, {.sequence_length = 33, .seed = 5});
  const TextDataset b(corpus, {100, 30'000}, {.sequence_length = 33, .seed = 5});
  const TextDataset c(corpus, {100, 30'000}, {.sequence_length = 33, .seed = 6});
  int same = 0;
  for (const int64_t n : {5'000, 3, 77, 0, 5'001}) { // in no order
    EXPECT_EQ(sample(a, n), sample(b, n));
    same += sample(a, n) == sample(c, n);
  }
  EXPECT_EQ(same, 0);
}

TEST_F(Samples, ARangeShorterThanAWindowIsAnError) {
  EXPECT_EQ(TextDataset(corpus, {0, 65}, {.sequence_length = 64}).samples_per_epoch(), 1);
  try {
    TextDataset(corpus, {0, 64}, {.sequence_length = 64, .name = "validation"});
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), HasSubstr("the validation part of dataset.path has 64 tokens, but "
                                        "one sample needs 65"));
  }
}

TEST(SplitCorpus, CutsAtDocumentsWhereThatIsNearAndThroughThemElse) {
  const TemporaryFolder folder;
  std::string lines;
  for (int i = 0; i < 100; ++i)
    lines += "{\"text\":\"" + std::string(static_cast<size_t>(9 + i % 5), 'x') + "\"}\n";
  folder.write("many.jsonl", lines);
  folder.write("one.txt", std::string(999, 'x'));
  const Corpus many({.path = folder.string() + "/many.jsonl"}, bytes());
  const Split split = split_corpus(many, "80,10,10");
  EXPECT_EQ(split.train.begin, 0);
  EXPECT_EQ(split.train.end, split.validation.begin);
  EXPECT_EQ(split.validation.end, split.test.begin);
  EXPECT_EQ(split.test.end, many.size_tokens());
  EXPECT_EQ(split.train.end, many.document_begin(80));
  EXPECT_EQ(split.validation.end, many.document_begin(90));
  const Corpus one({.path = folder.string() + "/one.txt"}, bytes());
  EXPECT_EQ(split_corpus(one, "95,5,0").train.end, 950);
  EXPECT_EQ(split_corpus(one, "95, 5").test.size(), 0);
  EXPECT_EQ(split_corpus(one, "1").train.size(), 1000);
  EXPECT_EQ(split_corpus(one, "1").validation.size(), 0);
  EXPECT_EQ(split_corpus(one, "0,1,1").train.size(), 0);
  const Split samples = split_samples(10, "75,25");
  EXPECT_EQ(samples.train, (StreamRange{0, 8}));
  EXPECT_EQ(samples[Part::kValidation], (StreamRange{8, 10}));
  EXPECT_EQ(samples[Part::kTest].size(), 0);
  for (const char* bad : {"", "a", "1,,2", "1,2,3,4", "-1,2", "0,0,0", "nan", "1;2", "1,2,"}) {
    EXPECT_THROW(split_corpus(one, bad), ConfigError) << bad;
  }
  for (const auto& [bad, why] :
       {std::pair{"0,0,0", "leaves no data: one share must be more than 0"},
        {"1e308,1e308,0", "has a share of more than 1e12"}})
    try {
      split_samples(10, bad);
      ADD_FAILURE() << bad;
    } catch (const ConfigError& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr(why));
    }
}

TEST(Split, IsCheckedBeforeDataIsRead) {
  const auto faults = [](const DatasetConfig& config) {
    config::Violations violations;
    config.validate(violations, "dataset");
    return violations.text();
  };
  const DatasetConfig text{.path = "none.jsonl"};
  EXPECT_EQ(faults(text), "");
  for (const char* bad : {"0,0", "1,2,3,4", "95;5"}) {
    DatasetConfig config = text;
    config.split = bad;
    EXPECT_THAT(faults(config),
                testing::AllOf(testing::HasSubstr(std::string("dataset.split=") + bad),
                               testing::HasSubstr("try: dataset.split=95,5")));
  }
  // As Megatron reads it, whatever stands between the numbers.
  DatasetConfig megatron{
      .type = DatasetType::kIndexed, .path = "none", .order = SampleOrder::kMegatron};
  megatron.split = "95;5";
  EXPECT_EQ(faults(megatron), "");
  megatron.split = "1,2,3,4";
  EXPECT_THAT(faults(megatron), testing::HasSubstr("try: dataset.split=95,5"));
  megatron.split = "95,5";
  megatron.seed = uint64_t{1} << 32;
  EXPECT_THAT(faults(megatron), testing::HasSubstr("try: dataset.seed=1234"));
}

} // namespace
} // namespace pentatron::data
