#include <map>
#include <numeric>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "pentatron/data/batch.h"
#include "pentatron/data/objectives/bert_dataset.h"
#include "pentatron/data/objectives/masking.h"
#include "pentatron/data/objectives/objective_tokenizer.h"
#include "pentatron/data/objectives/special_tokens.h"
#include "pentatron/data/objectives/t5_dataset.h"
#include "tests/data/data_files.h"
#include "tests/data/token_batches.h"

namespace pentatron::data {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// --- masking -----------------------------------------------------------------------------------

constexpr int64_t kMask = 900;

/// Tokens from 500 on continue the word before them; token 1 is special.
MaskOptions mask_options() {
  return {.rate = 0.15,
          .mask_token = kMask,
          .vocab_size = 900,
          .continues_word = [](int64_t t) { return t >= 500; },
          .is_special = [](int64_t t) { return t == 1; }};
}

TEST(MaskWords, TakesWholeWordsAndTheShareAsked) {
  const Stream stream(3, "test");
  int64_t masked_tokens = 0, all_tokens = 0, as_mask = 0, as_random = 0, kept = 0;
  for (uint64_t n = 0; n < 300; ++n) {
    std::vector<int64_t> tokens{1};
    for (uint64_t i = 0; i < 120; ++i)
      tokens.push_back(2 + static_cast<int64_t>(Stream(5, "tokens").below(898, n, i)));
    tokens.push_back(1);
    const std::vector<int64_t> before = tokens;
    Draws draws(stream, n);
    const auto masked = mask_words(tokens, mask_options(), draws);
    std::set<int64_t> places;
    for (const MaskedToken& m : masked) {
      EXPECT_EQ(m.label, before[static_cast<size_t>(m.position)]);
      EXPECT_NE(m.label, 1);
      places.insert(m.position);
      const int64_t now = tokens[static_cast<size_t>(m.position)];
      ++(now == kMask ? as_mask : now == m.label ? kept : as_random);
    }
    EXPECT_EQ(places.size(), masked.size());
    for (int64_t i = 1; i < 121; ++i) {
      if (!places.contains(i)) {
        EXPECT_EQ(tokens[static_cast<size_t>(i)], before[static_cast<size_t>(i)]);
      }
      // A token that continues a word is masked exactly if the one before it is.
      if (i > 1 && before[static_cast<size_t>(i)] >= 500) {
        EXPECT_EQ(places.contains(i), places.contains(i - 1));
      }
    }
    EXPECT_LE(masked.size(), 18u); // round(120 * 0.15)
    masked_tokens += static_cast<int64_t>(masked.size());
    all_tokens += 120;
  }
  EXPECT_NEAR(static_cast<double>(masked_tokens) / static_cast<double>(all_tokens), 0.15, 0.005);
  const auto share = [&](int64_t k) {
    return static_cast<double>(k) / static_cast<double>(masked_tokens);
  };
  EXPECT_NEAR(share(as_mask), 0.8, 0.02);
  EXPECT_NEAR(share(as_random), 0.1, 0.02);
  EXPECT_NEAR(share(kept), 0.1, 0.02);
}

TEST(MaskWords, MasksNeighborsTogether) {
  MaskOptions options = mask_options();
  options.continues_word = {};
  std::map<int64_t, double> runs_of; // by the most words: masked places to a run
  for (const int64_t most : {1, 3}) {
    options.max_ngram = most;
    int64_t places = 0, runs = 0;
    for (uint64_t n = 0; n < 500; ++n) {
      std::vector<int64_t> tokens(60, 7);
      tokens[30] = 1; // no run goes over a special token
      Draws draws(Stream(3, "test"), n);
      int64_t before = -2;
      for (const MaskedToken& m : mask_words(tokens, options, draws)) {
        EXPECT_NE(m.position, 30);
        runs += m.position != before + 1;
        before = m.position;
        ++places;
      }
    }
    EXPECT_EQ(places, 500 * 9); // round(59 * 0.15)
    runs_of[most] = static_cast<double>(places) / static_cast<double>(runs);
  }
  // One word, two or three in proportions 6 : 3 : 2.
  EXPECT_LT(runs_of[1], 1.3);
  EXPECT_GT(runs_of[3], 1.55);
}

TEST(RandomPartition, GivesEveryPartitionEquallyOften) {
  const Stream stream(1, "test");
  std::map<std::vector<int64_t>, int> seen;
  for (uint64_t n = 0; n < 10'000; ++n) {
    Draws draws(stream, n);
    const std::vector<int64_t> parts = random_partition(5, 3, draws);
    EXPECT_EQ(std::accumulate(parts.begin(), parts.end(), int64_t{0}), 5);
    ++seen[parts];
  }
  EXPECT_EQ(seen.size(), 6u); // 4 choose 2
  for (const auto& [parts, count] : seen) EXPECT_NEAR(count, 10'000 / 6, 150);
}

TEST(NoiseSpans, HaveTheDensityAndTextBetweenThem) {
  const Stream stream(2, "test");
  for (const int64_t length : {2, 3, 5, 20, 568}) {
    for (uint64_t n = 0; n < 50; ++n) {
      Draws draws(stream, n);
      int64_t noise = 0, at = 0;
      for (const Span& span : noise_spans(length, 0.15, 3, draws)) {
        EXPECT_GT(span.begin, at - (at == 0 ? 0 : 1));
        EXPECT_GT(span.begin, 0);
        EXPECT_GT(span.end, span.begin);
        EXPECT_LE(span.end, length);
        noise += span.end - span.begin;
        at = span.end + 1;
      }
      EXPECT_EQ(noise, std::max<int64_t>(1, std::llround(static_cast<double>(length) * 0.15)));
    }
  }
  EXPECT_TRUE([&] {
    Draws draws(stream, 0);
    return noise_spans(1, 0.15, 3, draws);
  }()
                  .empty());
}

// --- T5 ------------------------------------------------------------------------------------------

class CountingDataset final : public TokenDataset {
 public:
  explicit CountingDataset(int64_t s) : s_(s) {}
  int64_t sequence_length() const override { return s_; }
  void sample(int64_t n, int64_t* tokens) const override {
    for (int64_t i = 0; i <= s_; ++i) tokens[i] = 10 + (n * 1000 + i) % 30'000;
  }

 private:
  int64_t s_;
};

T5Dataset::Options t5_options() {
  T5Dataset::Options options{.input_length = 512,
                             .target_length = 114,
                             .eos_token = 1,
                             .pad_token = 0,
                             .start_token = 2,
                             .seed = 7};
  for (int64_t i = 0; i < 100; ++i) options.sentinels.push_back(40'099 - i);
  return options;
}

TEST(T5Dataset, RawLengthIsThatOfThePaper) {
  // T5's own choice: 568 raw tokens for inputs of 512 and targets of 114.
  EXPECT_EQ(T5Dataset::raw_length(t5_options()), 568);
}

TEST(T5Dataset, InputAndTargetTogetherAreTheText) {
  const T5Dataset t5(std::make_shared<CountingDataset>(567), t5_options());
  std::set<std::vector<int64_t>> inputs;
  for (int64_t n = 0; n < 40; ++n) {
    const T5Sample s = t5.sample(n);
    inputs.insert(s.input);
    ASSERT_LE(s.input.size(), 512u);
    ASSERT_LE(s.target.size(), 114u);
    // Spans by sentinel, from the target.
    std::map<int64_t, std::vector<int64_t>> spans;
    int64_t sentinel = 0;
    for (const int64_t token : s.target) {
      if (token >= 40'000) {
        sentinel = token;
        EXPECT_EQ(sentinel, 40'099 - static_cast<int64_t>(spans.size()));
        spans[sentinel];
      } else {
        spans[sentinel].push_back(token);
      }
    }
    EXPECT_EQ(spans[sentinel].back(), 1);
    spans[sentinel].pop_back();
    std::vector<int64_t> text;
    for (const int64_t token : s.input) {
      if (token >= 40'000) {
        text.insert(text.end(), spans[token].begin(), spans[token].end());
      } else {
        text.push_back(token);
      }
    }
    EXPECT_EQ(text.back(), 1);
    text.pop_back();
    std::vector<int64_t> raw(568);
    CountingDataset(567).sample(n, raw.data());
    EXPECT_EQ(text, raw);
    EXPECT_EQ(t5.sample(n).input, s.input);
  }
  EXPECT_EQ(inputs.size(), 40u);
}

TEST(T5Dataset, FieldsAreThoseOfTransformers) {
  T5Dataset::Options options = t5_options();
  options.input_length = 40;
  options.target_length = 7; // for which the input is not full
  const auto plain = std::make_shared<CountingDataset>(T5Dataset::raw_length(options) - 1);
  const T5Dataset t5(plain, options);
  EXPECT_THAT(t5.streams(), ElementsAre(BatchStream{"encoder", 40}, BatchStream{"decoder", 7}));
  const std::vector<int64_t> ids{3, -1};
  const Batch batch = make_batch(t5, ids);
  const T5Sample s = t5.sample(3);
  ASSERT_LT(s.input.size(), 40u);
  ASSERT_LT(s.target.size(), 7u);
  const auto row = [&](const char* field, size_t r, size_t width) {
    const std::vector<int64_t>& all = batch.ints(field);
    return std::vector<int64_t>(all.begin() + static_cast<std::ptrdiff_t>(r * width),
                                all.begin() + static_cast<std::ptrdiff_t>((r + 1) * width));
  };
  const auto padded = [](std::vector<int64_t> tokens, size_t width, int64_t fill) {
    tokens.resize(width, fill);
    return tokens;
  };
  EXPECT_EQ(row("input_ids", 0, 40), padded(s.input, 40, 0));
  EXPECT_EQ(row("labels", 0, 7), padded(s.target, 7, -100));
  std::vector<int64_t> moved{2};
  moved.insert(moved.end(), s.target.begin(), s.target.end() - 1);
  EXPECT_EQ(row("decoder_input_ids", 0, 7), padded(moved, 7, 0));
  EXPECT_EQ(row("labels", 1, 7), padded({}, 7, -100)); // a sample that fills a batch up
  EXPECT_EQ(row("decoder_input_ids", 1, 7), padded({}, 7, 0));
  EXPECT_EQ(batch.num_targets.at("labels"), std::ssize(s.target));
  const StreamShape& encoder = batch.stream("encoder");
  EXPECT_THAT(encoder.real, ElementsAre(StreamRange{0, std::ssize(s.input)}, StreamRange{0, 40}));
  EXPECT_EQ(encoder.squared_lengths, std::ssize(s.input) * std::ssize(s.input) + 1600);
  EXPECT_THAT(batch.stream("decoder").real,
              ElementsAre(StreamRange{0, std::ssize(s.target)}, StreamRange{0, 7}));
}

TEST(T5Dataset, TooFewSentinelsOrTokensAreErrors) {
  T5Dataset::Options options = t5_options();
  EXPECT_THROW(T5Dataset(std::make_shared<CountingDataset>(500), options), ConfigError);
  options.sentinels.resize(10);
  EXPECT_THROW(T5Dataset(std::make_shared<CountingDataset>(567), options), ConfigError);
}

// --- BERT ----------------------------------------------------------------------------------------

/// Document d has d % 4 + 1 sentences of 5 to 14 tokens, each token 100 * d + sentence.
class SomeSentences final : public Sentences {
 public:
  explicit SomeSentences(int64_t documents) {
    for (int64_t d = 0; d < documents; ++d) {
      begins_.push_back(static_cast<int64_t>(texts_.size()));
      for (int64_t k = 0; k <= d % 4; ++k)
        texts_.emplace_back(5 + (d * 7 + k * 3) % 10, 100 * (d + 1) + k);
    }
    begins_.push_back(static_cast<int64_t>(texts_.size()));
  }
  int64_t num_documents() const override { return static_cast<int64_t>(begins_.size()) - 1; }
  int64_t document_begin(int64_t d) const override { return begins_[static_cast<size_t>(d)]; }
  void read(int64_t i, int64_t offset, int64_t count, int64_t* out) const override {
    std::copy_n(texts_[static_cast<size_t>(i)].begin() + offset, count, out);
  }
  int64_t length(int64_t i) const override {
    return static_cast<int64_t>(texts_[static_cast<size_t>(i)].size());
  }

 private:
  std::vector<int64_t> begins_;
  std::vector<std::vector<int64_t>> texts_;
};

BertDataset::Options bert_options(int64_t sequence_length) {
  return {.sequence_length = sequence_length,
          .seed = 1,
          .cls_token = 1,
          .sep_token = 2,
          .pad_token = 0,
          .mask = {.mask_token = 3, .vocab_size = 6000}};
}

/// A sample as it was before words were masked.
std::vector<int64_t> unmasked(const BertSample& s) {
  std::vector<int64_t> text = s.tokens;
  for (const MaskedToken& token : s.masked) text[static_cast<size_t>(token.position)] = token.label;
  return text;
}

TEST(BertDataset, PairsTextsOfOneOrTwoDocuments) {
  const BertDataset bert(std::make_shared<SomeSentences>(50), {0, 123}, bert_options(64));
  EXPECT_EQ(bert.samples_per_epoch(), 50); // each document fits a piece
  int odd = 0;
  std::set<int64_t> documents;
  for (int64_t n = 0; n < 400; ++n) {
    const BertSample s = bert.sample(n);
    const std::vector<int64_t> text = unmasked(s);
    EXPECT_GE(s.masked.size(), 1u);
    ASSERT_LE(text.size(), 64u);
    ASSERT_EQ(text[0], 1);
    const auto sep = std::find(text.begin(), text.end(), 2);
    ASSERT_TRUE(sep != text.end());
    ASSERT_EQ(std::find(sep + 1, text.end(), 2), text.end() - 1);
    EXPECT_EQ(s.first_length, sep + 1 - text.begin());
    const auto document = [](int64_t token) { return token / 100; };
    for (auto it = text.begin() + 1; it != sep; ++it) EXPECT_EQ(document(*it), document(text[1]));
    for (auto it = sep + 1; it != text.end() - 1; ++it) EXPECT_EQ(document(*it), document(sep[1]));
    if (sep - text.begin() > 1 && text.end() - sep > 2) {
      EXPECT_EQ(document(text[1]) != document(sep[1]), s.is_odd);
    }
    odd += s.is_odd;
    if (n < 50) documents.insert(document(text[1]));
    EXPECT_EQ(bert.sample(n).tokens, s.tokens);
  }
  EXPECT_EQ(documents.size(), 50u); // each document once an epoch
  EXPECT_NEAR(odd, 200, 40);
}

TEST(BertDataset, TheOrderOfTwoPartsIsALabelToo) {
  BertDataset::Options options = bert_options(64);
  options.head = BinaryHead::kSentenceOrder;
  options.short_sequence_rate = 0;
  const BertDataset bert(std::make_shared<SomeSentences>(50), {0, 123}, options);
  int odd = 0, told = 0;
  for (int64_t n = 0; n < 200; ++n) {
    const BertSample s = bert.sample(n);
    const std::vector<int64_t> text = unmasked(s);
    const int64_t first = text[1], second = text[static_cast<size_t>(s.first_length)];
    EXPECT_EQ(first / 100, second / 100);
    if (first != second) {
      EXPECT_EQ(first > second, s.is_odd);
      ++told;
    }
    odd += s.is_odd;
  }
  EXPECT_NEAR(odd, 100, 30);
  EXPECT_GT(told, 100);
}

/// One document with sentences of the lengths given, whose tokens count from 10.
class CountedSentences final : public Sentences {
 public:
  explicit CountedSentences(std::vector<int64_t> lengths) : lengths_(std::move(lengths)) {}
  int64_t num_documents() const override { return 1; }
  int64_t document_begin(int64_t d) const override { return d * std::ssize(lengths_); }
  int64_t length(int64_t i) const override { return lengths_[static_cast<size_t>(i)]; }
  void read(int64_t i, int64_t offset, int64_t count, int64_t* out) const override {
    std::iota(out, out + count,
              10 + offset + std::accumulate(lengths_.begin(), lengths_.begin() + i, int64_t{0}));
  }

 private:
  std::vector<int64_t> lengths_;
};

TEST(BertDataset, AnEpochHasEveryTokenOnce) {
  BertDataset::Options options = bert_options(22);
  options.head = BinaryHead::kNone;
  options.short_sequence_rate = 0;
  // Pieces of 20: 7 + 0 + 12, 9, 20 + 20 + 5, 3 + 17, 4.
  const std::vector<int64_t> lengths{7, 0, 12, 9, 45, 3, 17, 4};
  const BertDataset bert(std::make_shared<CountedSentences>(lengths), {0, 8}, options);
  ASSERT_EQ(bert.samples_per_epoch(), 7);
  for (const int64_t epoch : {0, 1}) {
    std::multiset<int64_t> seen;
    for (int64_t n = 0; n < 7; ++n) {
      const std::vector<int64_t> text = unmasked(bert.sample(7 * epoch + n));
      seen.insert(text.begin() + 1, text.end() - 1);
    }
    ASSERT_EQ(seen.size(), 97u);
    int64_t expected = 10;
    for (const int64_t token : seen) EXPECT_EQ(token, expected++);
  }
  const BertDataset part(std::make_shared<CountedSentences>(lengths), {3, 6}, options);
  EXPECT_EQ(part.samples_per_epoch(), 5); // 9, 20 + 20 + 5, 3
}

TEST(BertDataset, FieldsAreThoseOfTransformers) {
  const BertDataset bert(std::make_shared<SomeSentences>(50), {0, 123}, bert_options(64));
  const std::vector<int64_t> ids{7, -1};
  const Batch batch = make_batch(bert, ids);
  const BertSample s = bert.sample(7);
  const auto length = s.tokens.size();
  for (size_t i = 0; i < 64; ++i) {
    EXPECT_EQ(batch.ints("input_ids")[i], i < length ? s.tokens[i] : 0);
    EXPECT_EQ(batch.ints("token_type_ids")[i],
              static_cast<int64_t>(i) >= s.first_length && i < length);
    const auto masked =
        std::ranges::find(s.masked, static_cast<int64_t>(i), &MaskedToken::position);
    EXPECT_EQ(batch.ints("labels")[i], masked == s.masked.end() ? -100 : masked->label);
    EXPECT_EQ(batch.ints("labels")[64 + i], -100);
  }
  EXPECT_THAT(batch.ints("next_sentence_label"), ElementsAre(s.is_odd ? 1 : 0, -100));
  EXPECT_THAT(batch.stream("tokens").real,
              ElementsAre(StreamRange{0, static_cast<int64_t>(length)}, StreamRange{0, 64}));
  EXPECT_EQ(batch.num_targets.at("labels"), std::ssize(s.masked));
  EXPECT_EQ(batch.num_targets.at("next_sentence_label"), 1);
}

// --- special tokens ----------------------------------------------------------------------------

std::vector<int32_t> encoded(const Tokenizer& tokenizer, const std::string& text) {
  std::vector<int32_t> tokens;
  tokenizer.encode_with_special(text, tokens);
  return tokens;
}

TEST(ObjectiveTokens, HaveNamesInTexts) {
  const auto bytes = std::make_shared<ByteTokenizer>();
  DatasetConfig config{.type = DatasetType::kT5};
  const auto t5 = with_objective_tokens(bytes, config);
  EXPECT_EQ(t5->vocab_size(), needed_vocabulary(config, *bytes));
  EXPECT_EQ(encoded(*t5, "a<extra_id_1>b<extra_id_0>"),
            (std::vector<int32_t>{'a', 259, 'b', 258, ByteTokenizer::kEod}));
  const std::vector<int64_t> ids{257, 258, 'a', 'b', 259, ByteTokenizer::kEod};
  EXPECT_EQ(t5->decode(ids), "<extra_id_0>ab<extra_id_1>");
  EXPECT_EQ(t5->decode_with_special(ids).substr(0, 5), "[PAD]");
  EXPECT_EQ(t5->token_id("<extra_id_9>"), 267);
  EXPECT_TRUE(t5->is_special(257));
  EXPECT_THROW(t5->decode(std::vector<int64_t>{t5->vocab_size()}), DataError);

  config.type = DatasetType::kBert;
  const auto bert = with_objective_tokens(bytes, config);
  EXPECT_EQ(encoded(*bert, "a[MASK]b"), (std::vector<int32_t>{258, 'a', 260, 'b', 259}));
  EXPECT_EQ(bert->decode(std::vector<int64_t>{258, 'a', 260, 'b', 259}), "ab");

  // One that has them already, and an objective that needs none.
  const std::shared_ptr<const Tokenizer> own =
      make_tokenizer({.path = PENTATRON_TEST_DATA "/tokenizers/bert.json", .eod = "[SEP]"});
  EXPECT_EQ(with_objective_tokens(own, config), own);
  config.type = DatasetType::kText;
  EXPECT_EQ(with_objective_tokens(bytes, config), bytes);
}

} // namespace
} // namespace pentatron::data
