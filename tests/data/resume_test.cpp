// Runs that are killed and go on with another number of ranks see every sample once, in order.
#include <algorithm>
#include <random>

#include <gtest/gtest.h>

#include "pentatron/base/error.h"
#include "pentatron/data/dataset.h"
#include "pentatron/data/loader.h"
#include "tests/data/megatron_files.h"
#include "tests/data/token_batches.h"

namespace pentatron::data {
namespace {

class KillAndResume : public testing::TestWithParam<SampleOrder> {};

TEST_P(KillAndResume, SeesEverySampleOnceAndInOrderAtAnyWorldSize) {
  constexpr int64_t kBatch =
      48; // 1, 2, 3, 4 and 8 ranks divide it, also with 2 samples a microbatch
  constexpr int kPoints = 200;
  std::mt19937 random(GetParam() == SampleOrder::kMegatron ? 1 : 2);
  const DatasetConfig config{.type = DatasetType::kIndexed,
                             .path = "0.4 " + megatron_file("corpus_a") + " 0.6 " +
                                     megatron_file("corpus_b"),
                             .order = GetParam(),
                             .split = "100"};
  const auto open = [&] {
    return open_datasets(config,
                         {.sequence_length = 8, .vocab_size = 130'000, .train_samples = 100'000})
        .train;
  };
  const std::shared_ptr<const Dataset> reference = open();
  int64_t consumed = 0; // all that a checkpoint keeps
  std::vector<int64_t> tokens(9);
  for (int point = 0; point < kPoints; ++point) {
    const int64_t world = std::vector<int64_t>{1, 2, 3, 4, 8}[random() % 5];
    const int64_t micro = kBatch / world % 2 == 0 && random() % 2 == 0 ? 2 : 1;
    const auto dataset = open(); // a process begins anew
    std::vector<std::unique_ptr<Loader>> ranks;
    for (int64_t rank = 0; rank < world; ++rank) {
      ranks.push_back(std::make_unique<Loader>(
          dataset, LoaderOptions{.global_batch_size = kBatch,
                                 .micro_batch_size = micro,
                                 .rank = rank,
                                 .size = world,
                                 .consumed_samples = consumed,
                                 .prefetch = 1 + static_cast<int64_t>(random() % 3)}));
    }
    const int steps = static_cast<int>(random() % 5); // also none
    for (int step = 0; step < steps; ++step) {
      std::vector<int64_t> seen;
      for (const auto& rank : ranks) {
        const StepData data = rank->next();
        for (const Batch& batch : data.microbatches) {
          for (int64_t r = 0; r < batch.batch_size; ++r) {
            const int64_t id = batch.sample_ids[static_cast<size_t>(r)];
            seen.push_back(id);
            tokens_of(*reference).sample(id, tokens.data());
            ASSERT_TRUE(std::equal(tokens.begin(), tokens.end() - 1,
                                   batch.ints("input_ids").begin() + r * 8));
            ASSERT_TRUE(
                std::equal(tokens.begin() + 1, tokens.end(), batch.ints("labels").begin() + r * 8));
          }
        }
      }
      std::sort(seen.begin(), seen.end());
      ASSERT_EQ(seen.size(), static_cast<size_t>(kBatch));
      for (const int64_t id : seen) ASSERT_EQ(id, consumed++);
    }
    for (const auto& rank : ranks) ASSERT_EQ(rank->consumed_samples(), consumed);
  }
  EXPECT_GT(consumed, kPoints * kBatch);
}

INSTANTIATE_TEST_SUITE_P(Orders, KillAndResume,
                         testing::Values(SampleOrder::kStable, SampleOrder::kMegatron),
                         [](const auto& info) {
                           return std::string(config::to_string(info.param));
                         });

TEST(Padding, FillsTheLastGlobalBatchWithoutALoss) {
  DatasetConfig config{.type = DatasetType::kIndexed,
                       .path = megatron_file("corpus_a"),
                       .full_validation = true,
                       .order = SampleOrder::kMegatron,
                       .split = "50,50"};
  const auto validation =
      open_datasets(config, {.sequence_length = 32, .vocab_size = 130'000, .train_samples = 1})
          .validation;
  const int64_t size = *validation->size();
  ASSERT_NE(size % 8, 0);
  int64_t targets = 0;
  for (int64_t rank = 0; rank < 4; ++rank) {
    Loader loader(validation, {.global_batch_size = 8,
                               .micro_batch_size = 1,
                               .rank = rank,
                               .size = 4,
                               .pad_last_batch = true});
    for (int64_t step = 0; step < (size + 7) / 8; ++step)
      targets += loader.next().num_targets.at("labels");
    EXPECT_THROW(loader.next(), DataError);
  }
  EXPECT_EQ(targets, size * 32);
}

} // namespace
} // namespace pentatron::data
