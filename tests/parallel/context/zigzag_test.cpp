// Which tokens a context-parallel rank has.
#include "pentatron/parallel/context/zigzag.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/ranks.h"
#include "tests/support/tensors.h"

namespace pentatron::parallel {
namespace {

nn::SequenceLayout ragged() {
  nn::SequenceLayout layout =
      nn::SequenceLayout::ragged(20, {5, 9}, {0, 17, 37}, {0, 4, 17, 19, 37}, at::kCPU);
  layout.real = {{0, 15}, {2, 20}};
  return layout;
}

TEST(Zigzag, RanksHaveAnEarlyAndALateChunk) {
  const nn::SequenceLayout whole = nn::SequenceLayout::dense(1, 8, {3}, at::kCPU);
  const auto chunks = zigzag_chunks(whole, 1, 2);
  ASSERT_EQ(chunks.size(), 2u);
  EXPECT_EQ(chunks[0].begin, 2);
  EXPECT_EQ(chunks[0].size, 2);
  EXPECT_EQ(chunks[1].begin, 4);
  EXPECT_EQ(chunks[1].size, 2);
}

TEST(Zigzag, EachTokenIsOnOneRankWhateverTheLength) {
  for (const int ranks : {1, 2, 3, 5}) {
    for (int64_t tokens = 2 * ranks; tokens < 50; ++tokens) {
      const nn::SequenceLayout whole = nn::SequenceLayout::dense(1, tokens, {0}, at::kCPU);
      std::vector<int> seen(static_cast<size_t>(tokens), 0);
      for (int rank = 0; rank < ranks; ++rank) {
        int64_t rows = 0;
        for (const nn::SampleChunk& chunk : zigzag_chunks(whole, rank, ranks)) {
          rows += chunk.size;
          for (int64_t t = chunk.begin; t < chunk.begin + chunk.size; ++t)
            ++seen[static_cast<size_t>(t)];
        }
        EXPECT_EQ(rows, zigzag_tokens(tokens, rank, ranks));
        EXPECT_NEAR(static_cast<double>(rows), static_cast<double>(tokens) / ranks, 2);
      }
      EXPECT_EQ(seen, std::vector<int>(static_cast<size_t>(tokens), 1));
    }
  }
}

TEST(Zigzag, RanksHaveEqualSharesOfCausalPairs) {
  constexpr int kRanks = 4;
  constexpr int64_t kTokens = 64;
  const nn::SequenceLayout whole = nn::SequenceLayout::dense(1, kTokens, {0}, at::kCPU);
  for (int rank = 0; rank < kRanks; ++rank) {
    int64_t pairs = 0;
    for (const nn::SampleChunk& chunk : zigzag_chunks(whole, rank, kRanks))
      for (int64_t t = chunk.begin; t < chunk.begin + chunk.size; ++t) pairs += t + 1;
    EXPECT_EQ(pairs * kRanks, kTokens * (kTokens + 1) / 2);
  }
}

TEST(Zigzag, NeighboursTogetherHaveTheChunksOfFewerRanks) {
  const nn::SequenceLayout whole = ragged();
  for (int neighbours = 0; neighbours < 2; ++neighbours) {
    std::vector<int64_t> fine, coarse;
    const auto places = [](const nn::SampleChunk& chunk, std::vector<int64_t>& all) {
      for (int64_t t = 0; t < chunk.size; ++t) all.push_back(chunk.sample * 100 + chunk.begin + t);
    };
    for (const nn::SampleChunk& chunk : zigzag_chunks(whole, neighbours, 2)) places(chunk, coarse);
    for (int rank = 2 * neighbours; rank < 2 * neighbours + 2; ++rank)
      for (const nn::SampleChunk& chunk : zigzag_chunks(whole, rank, 4)) places(chunk, fine);
    std::ranges::sort(fine);
    std::ranges::sort(coarse);
    EXPECT_EQ(fine, coarse);
  }
}

TEST(CutSamples, KeepsPositionsAndDropoutAddresses) {
  const nn::SequenceLayout whole = ragged();
  const at::Tensor numbers = at::arange(whole.tokens(), at::kLong);
  at::Tensor seen = at::zeros({whole.tokens()}, at::kLong);
  for (int rank = 0; rank < 3; ++rank) {
    const nn::SequenceLayout own = cut_samples(whole, rank, 3);
    const at::Tensor rows = own_tokens(numbers, own);
    seen.index_add_(0, rows, at::ones_like(rows));
    EXPECT_EQ(own.tokens(), rows.size(0));
    EXPECT_TRUE(at::equal(own.positions, whole.positions.index_select(0, rows)));
    EXPECT_TRUE(at::equal(own.row_ids, whole.row_ids.index_select(0, rows)));
    EXPECT_EQ(own.whole->document_starts, whole.document_starts);
    EXPECT_TRUE(at::equal(own.real_tokens(), own_tokens(whole.real_tokens(), own)));
    EXPECT_TRUE(at::equal(own.sample_numbers(), own_tokens(whole.sample_numbers(), own)));
    for (int64_t t = 0; t < own.tokens(); ++t)
      EXPECT_EQ(own.sample_of(t), whole.sample_of(rows[t].item<int64_t>()));
  }
  EXPECT_TRUE(at::equal(seen, at::ones_like(seen)));
}

TEST(CutSamples, OneRankHasAll) {
  const nn::SequenceLayout own = cut_samples(ragged(), 0, 1);
  EXPECT_EQ(own.whole, nullptr);
  EXPECT_EQ(own.tokens(), 37);
  const at::Tensor x = at::arange(37);
  EXPECT_TRUE(own_tokens(x, own).is_same(x));
}

TEST(CutSamples, SamplesThatAreTooShortAreNamed) {
  const nn::SequenceLayout whole =
      nn::SequenceLayout::ragged(20, {5, 9}, {0, 17, 22}, {0, 17, 22}, at::kCPU);
  const std::string message = test::error_of([&] { cut_samples(whole, 0, 3); });
  EXPECT_NE(message.find("a sample of 5 tokens"), std::string::npos) << message;
}

} // namespace
} // namespace pentatron::parallel
