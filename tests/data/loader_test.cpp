#include <algorithm>
#include <atomic>
#include <set>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "pentatron/base/error.h"
#include "pentatron/data/loader.h"
#include "tests/data/token_batches.h"

namespace pentatron::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// Token i of sample n is 1000 n + i; every multiple of seven ends a document (0).
class Numbered final : public TokenDataset {
 public:
  explicit Numbered(std::optional<int64_t> size = std::nullopt,
                    std::chrono::milliseconds delay = {})
      : size_(size), delay_(delay) {}
  int64_t sequence_length() const override { return 10; }
  std::optional<int64_t> size() const override { return size_; }
  void sample(int64_t n, int64_t* tokens) const override {
    std::this_thread::sleep_for(delay_);
    last_drawn = n;
    for (int64_t i = 0; i <= 10; ++i) tokens[i] = (1000 * n + i) % 7 == 0 ? 0 : 1000 * n + i;
  }

  mutable std::atomic<int64_t> last_drawn = -1;

 private:
  std::optional<int64_t> size_;
  std::chrono::milliseconds delay_;
};

class Fixed final : public TokenDataset {
 public:
  explicit Fixed(std::vector<int64_t> tokens) : tokens_(std::move(tokens)) {}
  int64_t sequence_length() const override { return static_cast<int64_t>(tokens_.size()) - 1; }
  void sample(int64_t, int64_t* tokens) const override {
    std::copy(tokens_.begin(), tokens_.end(), tokens);
  }

 private:
  std::vector<int64_t> tokens_;
};

std::shared_ptr<const Dataset> numbered(std::optional<int64_t> size = std::nullopt) {
  return std::make_shared<TokenSamples>(std::make_shared<Numbered>(size), TokenSamples::Options{});
}

void expect_same(const StepData& a, const StepData& b) {
  EXPECT_EQ(a.first_sample, b.first_sample);
  EXPECT_EQ(a.global_batch_size, b.global_batch_size);
  EXPECT_EQ(a.num_targets, b.num_targets);
  ASSERT_EQ(a.microbatches.size(), b.microbatches.size());
  for (size_t m = 0; m < a.microbatches.size(); ++m) {
    EXPECT_EQ(a.microbatches[m].sample_ids, b.microbatches[m].sample_ids);
    EXPECT_EQ(a.microbatches[m].ints("input_ids"), b.microbatches[m].ints("input_ids"));
    EXPECT_EQ(a.microbatches[m].ints("labels"), b.microbatches[m].ints("labels"));
    EXPECT_EQ(a.microbatches[m].streams, b.microbatches[m].streams);
  }
}

TEST(Batch, LabelsAreTheTokensOnePlaceOn) {
  const Batch batch = token_batch(Numbered(), std::vector<int64_t>{3, 1});
  EXPECT_EQ(batch.batch_size, 2);
  const StreamShape& shape = batch.stream("tokens");
  EXPECT_EQ(shape.sequence_length, 10);
  const std::vector<int64_t>&labels = batch.ints("labels"), &tokens = batch.ints("input_ids");
  EXPECT_THAT(batch.sample_ids, ElementsAre(3, 1));
  for (size_t r = 0; r < 2; ++r) {
    for (size_t i = 0; i + 1 < 10; ++i) EXPECT_EQ(labels[10 * r + i], tokens[10 * r + i + 1]);
  }
  EXPECT_EQ(labels[9], 3010 % 7 == 0 ? 0 : 3010);
  EXPECT_THAT(shape.cu_seqlens, ElementsAre(0, 10, 20));
  EXPECT_EQ(batch.num_targets.at("labels"), 20);
  EXPECT_EQ(shape.squared_lengths, 200);
  EXPECT_TRUE(shape.real.empty());
  EXPECT_FALSE(shape.packed);
}

TEST(Batch, DocumentEndsMaskResetAndSeparateAsConfigured) {
  const Fixed dataset({5, 0, 6, 7, 0, 0, 8, 0}); // the last token is a label only
  const std::vector<int64_t> ids{0, 1};
  const Batch plain = token_batch(dataset, ids, {.eod = 0});
  EXPECT_EQ(plain.num_targets.at("labels"), 14);
  EXPECT_EQ(plain.stream("tokens").max_seqlen, 7);
  const Batch masked = token_batch(dataset, ids, {.eod = 0, .eod_mask_loss = true});
  EXPECT_THAT(masked.ints("labels"),
              ElementsAre(0, -100, 7, 0, -100, -100, 0, 0, -100, 7, 0, -100, -100, 0));
  EXPECT_EQ(masked.num_targets.at("labels"), 8);
  const Batch positions = token_batch(dataset, ids, {.eod = 0, .reset_position_ids = true});
  EXPECT_THAT(positions.stream("tokens").position_ids,
              ElementsAre(0, 1, 0, 1, 2, 0, 0, 0, 1, 0, 1, 2, 0, 0));
  const Batch packed = token_batch(dataset, ids, {.eod = 0, .reset_attention_mask = true});
  EXPECT_THAT(packed.stream("tokens").cu_seqlens, ElementsAre(0, 2, 5, 6, 7, 9, 12, 13, 14));
  EXPECT_EQ(packed.stream("tokens").max_seqlen, 3);
  EXPECT_TRUE(packed.stream("tokens").packed);
  const Batch last =
      token_batch(Fixed({5, 6, 0, 7}), ids, {.eod = 0, .reset_attention_mask = true});
  EXPECT_THAT(last.stream("tokens").cu_seqlens,
              ElementsAre(0, 3, 6)); // no empty piece where a sample ends with a document
}

TEST(Loader, EqualsBatchesMadeInPlace) {
  const TokenSamples::Options options{.eod = 0, .eod_mask_loss = true};
  const auto dataset = std::make_shared<TokenSamples>(std::make_shared<Numbered>(), options);
  Loader loader(dataset, {.global_batch_size = 6, .micro_batch_size = 2, .prefetch = 3});
  for (int64_t step = 0; step < 20; ++step) {
    const StepData got = loader.next();
    ASSERT_EQ(got.microbatches.size(), 3u);
    for (int64_t m = 0; m < 3; ++m) {
      const int64_t first = 6 * step + 2 * m;
      const Batch expected = make_batch(*dataset, std::vector<int64_t>{first, first + 1});
      const Batch& batch = got.microbatches[static_cast<size_t>(m)];
      EXPECT_EQ(batch.ints("input_ids"), expected.ints("input_ids"));
      EXPECT_EQ(batch.ints("labels"), expected.ints("labels"));
    }
  }
  EXPECT_EQ(loader.consumed_samples(), 120);
}

TEST(Loader, IsTheSameForEveryPrefetch) {
  const auto dataset = numbered();
  Loader one(dataset, {.global_batch_size = 4, .micro_batch_size = 2, .prefetch = 1});
  Loader many(dataset, {.global_batch_size = 4, .micro_batch_size = 2, .prefetch = 16});
  for (int step = 0; step < 50; ++step) expect_same(one.next(), many.next());
}

TEST(Loader, GoesOnAsIfItHadTakenTheStepsBefore) {
  const auto dataset = numbered();
  const LoaderOptions options{.global_batch_size = 4, .micro_batch_size = 2, .rank = 1, .size = 2};
  Loader straight(dataset, options);
  for (int step = 0; step < 7; ++step) straight.next();
  LoaderOptions resumed_options = options;
  resumed_options.consumed_samples = straight.consumed_samples();
  Loader resumed(dataset, resumed_options);
  for (int step = 0; step < 5; ++step) expect_same(straight.next(), resumed.next());
  EXPECT_EQ(resumed.consumed_samples(), straight.consumed_samples());
}

TEST(Loader, RanksTogetherHoldEachStepsSamplesOnceForEverySize) {
  const auto dataset = numbered();
  for (const int64_t size : {1, 2, 3, 6}) {
    std::vector<std::unique_ptr<Loader>> loaders;
    for (int64_t r = 0; r < size; ++r) {
      loaders.push_back(std::make_unique<Loader>(
          dataset,
          LoaderOptions{.global_batch_size = 12, .micro_batch_size = 2, .rank = r, .size = size}));
    }
    for (int64_t step = 0; step < 3; ++step) {
      std::multiset<int64_t> ids;
      for (auto& loader : loaders) {
        for (const Batch& batch : loader->next().microbatches)
          ids.insert(batch.sample_ids.begin(), batch.sample_ids.end());
      }
      ASSERT_EQ(ids.size(), 12u);
      int64_t expected = 12 * step;
      for (const int64_t id : ids) EXPECT_EQ(id, expected++);
    }
  }
}

TEST(Loader, DealsBlocksToRanksInSampleOrder) {
  Loader loader(numbered(), {.global_batch_size = 8, .micro_batch_size = 2, .rank = 1, .size = 2});
  const StepData step = loader.next();
  EXPECT_THAT(step.microbatches[0].sample_ids, ElementsAre(2, 3));
  EXPECT_THAT(step.microbatches[1].sample_ids, ElementsAre(6, 7));
}

TEST(Loader, FollowsAGrowingBatchSize) {
  const auto grow = [](int64_t consumed) -> int64_t { return consumed < 8 ? 2 : 4; };
  Loader loader(numbered(), {.micro_batch_size = 1, .global_batch_size_at = grow});
  std::vector<int64_t> sizes;
  for (int i = 0; i < 6; ++i)
    sizes.push_back(static_cast<int64_t>(loader.next().microbatches.size()));
  EXPECT_THAT(sizes, ElementsAre(2, 2, 2, 2, 4, 4));
  EXPECT_EQ(loader.consumed_samples(), 16);
  Loader resumed(numbered(),
                 {.micro_batch_size = 1, .consumed_samples = 8, .global_batch_size_at = grow});
  EXPECT_EQ(resumed.next().global_batch_size, 4);
}

TEST(Loader, EndsWithAnErrorAfterTheLastWholeBatch) {
  Loader loader(numbered(7), {.global_batch_size = 2, .micro_batch_size = 1});
  for (int i = 0; i < 3; ++i) loader.next();
  try {
    loader.next();
    FAIL();
  } catch (const DataError& error) {
    EXPECT_THAT(error.what(), HasSubstr("the dataset has 7 samples"));
    EXPECT_THAT(error.what(), HasSubstr("train.train_iters=3"));
  }
  EXPECT_THROW(loader.next(), DataError);
}

TEST(Loader, RefusesSizesThatDoNotDivide) {
  try {
    Loader(numbered(), {.global_batch_size = 10, .micro_batch_size = 2, .size = 2});
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_THAT(
        error.what(),
        HasSubstr("train.global_batch_size=10 is not a multiple of train.micro_batch_size=2"));
    EXPECT_THAT(error.what(), HasSubstr("try: train.global_batch_size=12"));
  }
}

TEST(Loader, TellsHowMuchOfTheTimeItsConsumerWaited) {
  using namespace std::chrono_literals;
  const auto samples = std::make_shared<Numbered>(std::nullopt, 10ms);
  Loader slow(std::make_shared<TokenSamples>(samples, TokenSamples::Options{}),
              {.global_batch_size = 2, .micro_batch_size = 2});
  slow.next();
  EXPECT_GT(slow.wait_share(), 0);
  while (samples->last_drawn < 4) std::this_thread::sleep_for(1ms); // samples 2 and 3 are ready
  slow.wait_share();
  slow.next(); // is there already
  EXPECT_EQ(slow.wait_share(), 0);
}

} // namespace
} // namespace pentatron::data
