#include <cmath>
#include <cstring>
#include <functional>
#include <random>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "pentatron/base/json.h"
#include "pentatron/data/gpt/blend.h"
#include "pentatron/data/gpt/gpt_dataset.h"
#include "pentatron/data/gpt/gpt_index.h"
#include "pentatron/data/gpt/random_state.h"
#include "pentatron/data/indexed/indexed_writer.h"
#include "pentatron/data/loader.h"
#include "tests/data/data_files.h"
#include "tests/data/megatron_files.h"
#include "tests/data/token_batches.h"

namespace pentatron::data {
namespace {

using ::testing::_;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// --- numpy's shuffle -----------------------------------------------------------------------------

/// From its description, one draw after the other.
template <class T>
void plain_shuffle(std::mt19937& words, std::vector<T>& values, size_t begin, size_t end) {
  for (size_t i = end - begin - 1; end > begin && i > 0; --i) {
    uint32_t mask = 1;
    while (mask < i) mask = 2 * mask + 1;
    uint32_t j = words() & mask;
    while (j > i) j = words() & mask;
    std::swap(values[begin + i], values[begin + j]);
  }
}

TEST(RandomState, ShufflesAsNumpyDoes) {
  // numpy.random.RandomState(1234).shuffle(numpy.arange(10))
  std::vector<int32_t> ten(10);
  std::iota(ten.begin(), ten.end(), 0);
  RandomState(1234).shuffle(ten);
  EXPECT_THAT(ten, ElementsAre(7, 2, 9, 1, 0, 8, 4, 5, 6, 3));
}

TEST(RandomState, DrawsAndShufflesAsThePlainOneOfEverySize) {
  for (const uint32_t seed : {0u, 7u, 1234u, 0xFFFFFFFFu}) {
    RandomState fast(seed);
    std::mt19937 plain(seed);
    for (size_t n :
         {0, 1, 2, 3, 4, 5, 31, 32, 33, 255, 256, 257, 258, 624, 625, 1023, 5000, 70001}) {
      std::vector<int32_t> a(n);
      std::vector<int64_t> wide(n);
      std::iota(a.begin(), a.end(), -5);
      std::iota(wide.begin(), wide.end(), 0);
      std::vector<int32_t> b = a;
      std::vector<int64_t> wide_b = wide;
      fast.shuffle(a);
      if (n > 0) plain_shuffle(plain, b, 0, n);
      EXPECT_EQ(a, b) << n;
      fast.shuffle(wide);
      if (n > 0) plain_shuffle(plain, wide_b, 0, n);
      EXPECT_EQ(wide, wide_b) << n;
      for (int i = 0; i < 3; ++i) EXPECT_EQ(fast.next(), plain());
    }
    const uint64_t high = plain();
    EXPECT_EQ(fast.next64(), (high << 32) | plain());
  }
}

// --- samples
// ---------------------------------------------------------------------------------------

TEST(GptDataset, DrawsTheSamplesOfMegatron) {
  const Json cases = read_json(megatron_file("expected.json"))["gpt"];
  ASSERT_EQ(cases.size(), 12u);
  for (const Json& c : cases) {
    const auto corpus =
        std::make_shared<const IndexedDataset>(megatron_file(c["corpus"].get<std::string>()));
    const std::string part = c["part"];
    // Not c["split"]: see tests/data/megatron/README.md.
    const SequenceRange range = megatron_split("1,1,1", corpus->num_sequences(),
                                               part == "train"   ? Part::kTrain
                                               : part == "valid" ? Part::kValidation
                                                                 : Part::kTest);
    const auto index = std::make_shared<const GptIndex>(build_gpt_index(
        corpus->lengths(range.begin, range.end), range.begin,
        {.sequence_length = c["sequence_length"], .num_samples = c["samples"], .seed = c["seed"]}));
    const GptDataset dataset(corpus, index, 130'000);
    EXPECT_EQ(dataset.size(), c["count"].get<int64_t>()) << c["corpus"] << " " << part;
    for (const auto& [n, tokens] : c["tokens"].items()) {
      std::vector<int64_t> sample(static_cast<size_t>(dataset.sequence_length() + 1));
      dataset.sample(std::stoll(n), sample.data());
      EXPECT_EQ(sample, tokens.get<std::vector<int64_t>>())
          << c["corpus"] << " " << c["split"] << " " << part << " " << n;
    }
    EXPECT_THAT(error_of<DataError>([&] {
                  std::vector<int64_t> sample(100);
                  dataset.sample(*dataset.size(), sample.data());
                }),
                HasSubstr("samples, so sample"));
  }
}

/// The three arrays, from their description, without care for time or memory.
struct PlainIndex {
  std::vector<int32_t> documents;
  std::vector<std::pair<int64_t, int64_t>> begins;
  std::vector<int64_t> shuffle;
};

PlainIndex plain_index(const std::vector<int32_t>& lengths, int64_t first,
                       const GptIndexOptions& options) {
  const int64_t s = options.sequence_length;
  int64_t tokens = 0;
  for (const int32_t length : lengths) tokens += length;
  int64_t epochs = 1;
  if (options.num_samples) {
    while (epochs * tokens < *options.num_samples * s + 1) ++epochs;
  }
  const int64_t before_last = ((epochs - 1) * tokens - 1) / s;
  const int64_t one = (tokens - 1) / s;
  const bool separate = epochs > 1 && *options.num_samples - before_last <
                                          static_cast<int>(0.80 * static_cast<double>(one));
  PlainIndex index;
  std::mt19937 random(static_cast<uint32_t>(options.seed));
  for (int64_t e = 0; e < epochs; ++e) {
    for (size_t i = 0; i < lengths.size(); ++i)
      index.documents.push_back(static_cast<int32_t>(first + static_cast<int64_t>(i)));
  }
  const size_t all = index.documents.size(), last = separate ? lengths.size() : 0;
  plain_shuffle(random, index.documents, 0, all - last);
  if (separate) plain_shuffle(random, index.documents, all - last, all);

  const int64_t usable = epochs * tokens - 1;
  const int64_t samples = options.drop_last_partial_sequence ? usable / s : (usable + s - 1) / s;
  size_t d = 0;
  int64_t offset = 0;
  const auto length = [&](size_t at) {
    return int64_t{lengths[static_cast<size_t>(index.documents[at] - first)]};
  };
  index.begins.emplace_back(0, 0);
  for (int64_t i = 0; i < samples; ++i) {
    int64_t remaining = s + 1;
    while (remaining != 0) {
      const int64_t here = length(d) - offset;
      remaining -= here;
      if (remaining <= 0) {
        offset += remaining + here - 1;
        remaining = 0;
      } else if (d + 1 == all) {
        offset = length(d) - 1;
        break;
      } else {
        ++d;
        offset = 0;
      }
    }
    index.begins.emplace_back(static_cast<int64_t>(d), offset);
  }
  index.shuffle.resize(static_cast<size_t>(samples));
  std::iota(index.shuffle.begin(), index.shuffle.end(), 0);
  const auto head = separate ? static_cast<size_t>(before_last) : index.shuffle.size();
  plain_shuffle(random, index.shuffle, 0, head);
  if (head < index.shuffle.size()) plain_shuffle(random, index.shuffle, head, index.shuffle.size());
  return index;
}

TEST(GptIndex, EqualsThePlainOneOnRandomCorpora) {
  std::mt19937 random(5);
  int separate = 0, several = 0, partial = 0;
  for (int round = 0; round < 400; ++round) {
    const auto draw = [&](int low, int high) {
      return std::uniform_int_distribution<int>(low, high)(random);
    };
    std::vector<int32_t> lengths(static_cast<size_t>(draw(1, 60)));
    const int longest = draw(1, 80), shortest = draw(0, 1);
    for (int32_t& length : lengths) length = draw(shortest, longest);
    lengths.front() += 1; // at least one token
    GptIndexOptions options{.sequence_length = draw(1, 40),
                            .seed = static_cast<uint64_t>(draw(0, 1 << 30)),
                            .drop_last_partial_sequence = draw(0, 3) != 0};
    if (draw(0, 4) != 0) options.num_samples = draw(0, 400);
    if (!options.drop_last_partial_sequence) lengths.back() += 1;
    const int64_t first = draw(0, 1000);
    const int64_t tokens = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
    if (tokens <= options.sequence_length && !options.num_samples) continue;
    if (options.num_samples == 0 && tokens <= options.sequence_length) continue;
    const PlainIndex plain = plain_index(lengths, first, options);
    const GptIndex index = build_gpt_index(lengths, first, options);
    ASSERT_EQ(index.documents, plain.documents);
    ASSERT_EQ(index.num_samples, static_cast<int64_t>(plain.shuffle.size()));
    for (size_t i = 0; i < plain.begins.size(); ++i) {
      const auto k = static_cast<int64_t>(i);
      const std::pair<int64_t, int64_t> begin{at(index.sample_begin, 2 * k),
                                              at(index.sample_begin, 2 * k + 1)};
      if (i == 0 || shortest > 0 || begin == plain.begins[i]) {
        ASSERT_EQ(begin, plain.begins[i]) << round << " sample " << i;
      }
    }
    for (size_t i = 0; i < plain.shuffle.size(); ++i)
      ASSERT_EQ(at(index.shuffle, static_cast<int64_t>(i)), plain.shuffle[i]);
    EXPECT_GE(index.num_samples, options.num_samples.value_or(0));
    separate += index.separate_last_epoch;
    several += index.num_epochs > 1;
    partial += !options.drop_last_partial_sequence;
  }
  // The cases that matter came up.
  EXPECT_GT(separate, 40);
  EXPECT_GT(several, 100);
  EXPECT_GT(partial, 40);
}

TEST(GptIndex, ASeedOver32BitsAndTooFewTokensAreErrors) {
  const std::vector<int32_t> lengths{5, 6};
  EXPECT_THAT(error_of<ConfigError>([&] {
                build_gpt_index(lengths, 0, {.sequence_length = 4, .seed = uint64_t{1} << 32});
              }),
              HasSubstr("dataset.seed=4294967296"));
  EXPECT_THAT(error_of<ConfigError>([&] { build_gpt_index(lengths, 0, {.sequence_length = 11}); }),
              HasSubstr("11 tokens, but one sample needs 12"));
  EXPECT_THAT(
      error_of<ConfigError>([&] {
        build_gpt_index(std::vector<int32_t>{0, 0}, 0, {.sequence_length = 1, .num_samples = 1});
      }),
      HasSubstr("0 tokens"));
  EXPECT_THAT(error_of<DataError>([&] {
                build_gpt_index(lengths, 0,
                                {.sequence_length = 1 << 20, .num_samples = int64_t{1} << 60});
              }),
              HasSubstr("too many to count"));
}

TEST(GptDataset, APartialLastSampleEndsWithoutALoss) {
  const TemporaryFolder folder;
  const std::string prefix = folder.string() + "/a";
  IndexedWriter writer(prefix, {});
  for (const int length : {3, 4}) {
    writer.add_sequence(std::vector<int32_t>(static_cast<size_t>(length), length));
    writer.end_document();
  }
  writer.commit();
  const auto corpus = std::make_shared<const IndexedDataset>(prefix);
  const auto index = std::make_shared<const GptIndex>(build_gpt_index(
      corpus->lengths(0, 2), 0, {.sequence_length = 4, .drop_last_partial_sequence = false}));
  const GptDataset dataset(corpus, index, 10);
  ASSERT_EQ(dataset.size(), 2);
  int64_t targets = 0;
  for (const int64_t n : {0, 1}) {
    const int64_t ids[] = {n};
    const Batch batch = token_batch(dataset, ids);
    targets += batch.num_targets.at("labels");
    if (batch.num_targets.at("labels") == 2) {
      EXPECT_THAT(batch.ints("labels"), ElementsAre(_, _, -100, -100));
      EXPECT_EQ(batch.ints("input_ids")[3], 0);
    }
  }
  EXPECT_EQ(targets, 6); // every token but the first is a target once
}

TEST(GptDataset, TokensOutsideTheVocabularyAreErrors) {
  const auto corpus = std::make_shared<const IndexedDataset>(megatron_file("corpus_b"));
  const auto index = std::make_shared<const GptIndex>(
      build_gpt_index(corpus->lengths(0, corpus->num_sequences()), 0, {.sequence_length = 1000}));
  const GptDataset dataset(corpus, index, 1000);
  std::vector<int64_t> tokens(1001);
  EXPECT_THAT(error_of<DataError>([&] { dataset.sample(0, tokens.data()); }),
              HasSubstr("is outside model.vocab_size=1000\n  try: model.vocab_size=119"));
}

// --- split -------------------------------------------------------------------------------------

TEST(MegatronSplit, RoundsHalvesToEvenAsPythonDoes) {
  const auto bounds = [](const std::string& split, int64_t n) {
    std::vector<int64_t> b;
    for (const Part part : {Part::kTrain, Part::kValidation, Part::kTest}) {
      const SequenceRange r = megatron_split(split, n, part);
      b.insert(b.end(), {r.begin, r.end});
    }
    return b;
  };
  EXPECT_THAT(bounds("1,1", 5), ElementsAre(0, 2, 2, 5, 5, 5)); // round(2.5) = 2
  EXPECT_THAT(bounds("1,1", 7), ElementsAre(0, 4, 4, 7, 7, 7)); // round(3.5) = 4
  EXPECT_THAT(bounds("969, 30, 1", 1000), ElementsAre(0, 969, 969, 999, 999, 1000));
  EXPECT_THAT(bounds("100,0,0", 61), ElementsAre(0, 61, 61, 61, 61, 61));
  EXPECT_THAT(bounds(".9/.1", 10), ElementsAre(0, 9, 9, 10, 10, 10));
  for (const char* bad : {"", "0,0", "1,1,1,1", "1.2.3", "x"})
    EXPECT_THAT(error_of<ConfigError>([&] { bounds(bad, 10); }), HasSubstr("dataset.split"));
}

// --- blends ------------------------------------------------------------------------------------

TEST(BlendOrder, IsThatOfMegatronIndexForIndex) {
  const Json expected = read_json(megatron_file("expected.json"));
  for (const Json& c : expected.at("blend")) {
    const BlendOrder order(c["weights"].get<std::vector<double>>());
    for (int64_t n = 0; n < c["size"].get<int64_t>(); ++n) {
      EXPECT_EQ(order(n).dataset, c["dataset_index"][static_cast<size_t>(n)].get<int>()) << n;
      EXPECT_EQ(order(n).sample, c["dataset_sample_index"][static_cast<size_t>(n)].get<int64_t>());
    }
  }
}

TEST(BlendOrder, IsTheSameWhereverOneBegins) {
  const std::vector<double> weights{0.123, 0.456, 0.421};
  const BlendOrder forward(weights);
  std::vector<int64_t> taken(3);
  std::vector<BlendOrder::Place> plain;
  for (int64_t n = 0; n < 300'000; ++n) {
    size_t best = 0;
    for (size_t d = 1; d < 3; ++d) {
      const auto error = [&](size_t k) {
        return weights[k] * std::max(static_cast<double>(n), 1.0) - static_cast<double>(taken[k]);
      };
      if (error(d) > error(best)) best = d;
    }
    plain.push_back({static_cast<int32_t>(best), taken[best]++});
    const BlendOrder::Place place = forward(n);
    ASSERT_TRUE(place.dataset == plain.back().dataset && place.sample == plain.back().sample) << n;
  }
  std::mt19937 random(3);
  const BlendOrder jumping(weights);
  for (int i = 0; i < 200; ++i) {
    const int64_t n = random() % 300'000;
    EXPECT_EQ(jumping(n).sample, plain[static_cast<size_t>(n)].sample);
  }
}

TEST(BlendOrder, WithLimitsEveryDatasetIsUsedUp) {
  const std::vector<int64_t> sizes{7, 100, 1, 30};
  const BlendOrder order({7 / 138., 100 / 138., 1 / 138., 30 / 138.}, sizes);
  std::vector<int64_t> taken(4);
  for (int64_t n = 0; n < 138; ++n) {
    const BlendOrder::Place place = order(n);
    EXPECT_EQ(place.sample, taken[static_cast<size_t>(place.dataset)]++);
  }
  EXPECT_EQ(taken, sizes);
}

TEST(BlendWords, AreReadAsMegatronsUsersWriteThem) {
  using Words = std::vector<std::string>;
  EXPECT_EQ(blend_words("0.3 a 0.7 b"), (Words{"0.3", "a", "0.7", "b"}));
  EXPECT_EQ(blend_words("[0.3, a, 0.7, \"b c\"]"), (Words{"0.3", "a", "0.7", "b c"}));
  EXPECT_EQ(blend_words("a,\n b\t'c,d'"), (Words{"a", "b", "c,d"}));
  const Blend weighted = parse_blend({"0.3", "a", "7", "b"}, "dataset.path");
  EXPECT_THAT(weighted.prefixes, ElementsAre("a", "b"));
  EXPECT_THAT(weighted.weights, ElementsAre(0.3, 7));
  EXPECT_THAT(parse_blend({"a", "b"}, "k").prefixes, ElementsAre("a", "b"));
  EXPECT_THAT(parse_blend({"1", "b", "2"}, "k").prefixes, ElementsAre("1", "b", "2")); // odd
  EXPECT_TRUE(parse_blend({"a"}, "k").weights.empty());
  EXPECT_THAT(error_of<ConfigError>([] {
                parse_blend({"1", "a", "b", "c"}, "dataset.path");
              }),
              HasSubstr("dataset.path has weights for only some of its corpora"));
  EXPECT_THAT(error_of<ConfigError>([] { parse_blend({"0", "a"}, "k"); }), HasSubstr("weight 0"));
  EXPECT_THAT(error_of<ConfigError>([] { parse_blend({}, "k"); }),
              HasSubstr("does not name a corpus"));
}

TEST(BlendSizes, AreThoseThatMegatronAsksFor) {
  // ceil(ceil(size * w) * 1.005), by hand
  EXPECT_THAT(blend_sizes(std::vector<double>{0.3, 0.7}, 1001, 0.005), ElementsAre(303, 705));
  EXPECT_THAT(blend_sizes(std::vector<double>{0.3, 0.7}, 1001, 0), ElementsAre(301, 701));
}

} // namespace
} // namespace pentatron::data
