// Which tokens attend to which: documents, real ranges, and cross-attention between two layouts.
#include "pentatron/nn/context.h"

#include "pentatron/base/error.h"
#include "tests/support/ranks.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace pentatron::nn {
namespace {

SequenceLayout two_samples(int64_t sequence) {
  return SequenceLayout::dense(2, sequence, {4, 9}, at::kCPU);
}

struct ExpectedPair {
  int64_t query_begin, query_size, key_begin, key_size, offset, key_position;
};

void expect_pairs(const std::vector<kernels::AttentionPair>& actual,
                  const std::vector<ExpectedPair>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    SCOPED_TRACE(i);
    EXPECT_EQ(actual[i].query_begin, expected[i].query_begin);
    EXPECT_EQ(actual[i].query_size, expected[i].query_size);
    EXPECT_EQ(actual[i].key_begin, expected[i].key_begin);
    EXPECT_EQ(actual[i].key_size, expected[i].key_size);
    EXPECT_EQ(actual[i].offset, expected[i].offset);
    EXPECT_EQ(actual[i].key_position, expected[i].key_position);
  }
}

TEST(SequenceLayoutPairs, ADocumentSeesItself) {
  expect_pairs(two_samples(5).self_attention(), {{0, 5, 0, 5, 0, 0}, {5, 5, 5, 5, 0, 0}});
  const SequenceLayout packed = SequenceLayout::packed(2, 5, {4, 9}, {0, 2, 5, 10}, true, at::kCPU);
  expect_pairs(packed.self_attention(),
               {{0, 2, 0, 2, 0, 0}, {2, 3, 2, 3, 0, 2}, {5, 5, 5, 5, 0, 0}});
}

TEST(SequenceLayoutPairs, PaddingSeesButIsNotSeen) {
  SequenceLayout layout = two_samples(5);
  layout.real = {{0, 3}, {2, 5}};
  expect_pairs(layout.self_attention(), {{0, 5, 0, 3, 0, 0}, {5, 5, 7, 3, 2, 2}});
}

TEST(SequenceLayoutPairs, ARealRangeCutsEachDocument) {
  SequenceLayout layout = SequenceLayout::packed(2, 5, {4, 9}, {0, 2, 4, 5, 10}, true, at::kCPU);
  layout.real = {{1, 3}, {0, 0}};
  expect_pairs(layout.self_attention(),
               {{0, 2, 1, 1, 1, 1}, {2, 2, 2, 1, 0, 2}, {4, 1, 4, 0, 0, 4}, {5, 5, 5, 0, 0, 0}});
}

TEST(SequenceLayoutPairs, QueriesSeeTheRealTokensOfTheirSampleInTheMemory) {
  SequenceLayout queries = two_samples(3), memory = two_samples(5);
  queries.real = {{0, 1}, {0, 3}}; // of queries it means nothing
  memory.real = {{0, 4}, {1, 5}};
  expect_pairs(queries.cross_attention(memory), {{0, 3, 0, 4, 0, 0}, {3, 3, 6, 4, 1, 1}});
}

TEST(SequenceLayoutPairs, PackedDocumentsSeeTheDocumentOfTheirNumber) {
  const SequenceLayout queries = SequenceLayout::packed(2, 4, {4, 9}, {0, 1, 4, 8}, true, at::kCPU);
  const SequenceLayout memory = SequenceLayout::packed(2, 6, {4, 9}, {0, 5, 6, 12}, true, at::kCPU);
  expect_pairs(queries.cross_attention(memory),
               {{0, 1, 0, 5, 0, 0}, {1, 3, 5, 1, 0, 5}, {4, 4, 6, 6, 0, 0}});
}

TEST(SequenceLayoutPairs, LayoutsOfOtherDocumentsCannotAttend) {
  const SequenceLayout queries = two_samples(4);
  const auto error = [&](const SequenceLayout& memory) {
    return test::error_of([&] { queries.cross_attention(memory); });
  };
  EXPECT_NE(error(SequenceLayout::dense(3, 4, {1, 2, 3}, at::kCPU)).find("2 documents"),
            std::string::npos);
  EXPECT_NE(error(SequenceLayout::packed(2, 4, {1, 2}, {0, 2, 4, 8}, true, at::kCPU))
                .find("cannot attend to 3 documents"),
            std::string::npos);
  // As many documents, but in other samples.
  const SequenceLayout early = SequenceLayout::packed(2, 4, {1, 2}, {0, 2, 4, 8}, true, at::kCPU),
                       late = SequenceLayout::packed(2, 4, {1, 2}, {0, 4, 6, 8}, true, at::kCPU);
  EXPECT_NE(test::error_of([&] { early.cross_attention(late); }), "");
}

SequenceLayout ragged(int64_t sequence, const std::vector<int64_t>& starts) {
  return SequenceLayout::ragged(sequence, {4, 9, 6}, starts, starts, at::kCPU);
}

TEST(RaggedLayout, TokensHaveThePlacesInTheirSamplesOfThePaddedOne) {
  const SequenceLayout layout = ragged(5, {0, 3, 4, 9}),
                       padded = SequenceLayout::dense(3, 5, {4, 9, 6}, at::kCPU);
  EXPECT_EQ(layout.tokens(), 9);
  EXPECT_EQ(layout.outer_tokens(), 9);
  const at::Tensor kept = at::tensor({0, 1, 2, 5, 10, 11, 12, 13, 14}, at::kLong);
  EXPECT_TRUE(at::equal(layout.positions, padded.positions.index_select(0, kept)));
  EXPECT_TRUE(at::equal(layout.row_ids, padded.row_ids.index_select(0, kept)));
  const std::vector<size_t> samples = {0, 0, 0, 1, 2, 2, 2, 2, 2};
  for (size_t t = 0; t < samples.size(); ++t)
    EXPECT_EQ(layout.sample_of(static_cast<int64_t>(t)), samples[t]) << t;
}

TEST(RaggedLayout, SamplesSeeThemselvesAndTheirSampleInTheMemory) {
  SequenceLayout queries = ragged(5, {0, 3, 4, 9}), memory = ragged(4, {0, 1, 5, 7});
  expect_pairs(queries.self_attention(),
               {{0, 3, 0, 3, 0, 0}, {3, 1, 3, 1, 0, 0}, {4, 5, 4, 5, 0, 0}});
  expect_pairs(queries.cross_attention(memory),
               {{0, 3, 0, 1, 0, 0}, {3, 1, 1, 4, 0, 0}, {4, 5, 5, 2, 0, 0}});
  memory.real = {{0, 1}, {1, 3}, {0, 2}}; // some padding is left
  expect_pairs(queries.cross_attention(memory),
               {{0, 3, 0, 1, 0, 0}, {3, 1, 2, 2, 1, 1}, {4, 5, 5, 2, 0, 0}});
}

TEST(RaggedLayout, DocumentsAreCountedInTheirSamples) {
  const SequenceLayout layout =
      SequenceLayout::ragged(5, {4, 9}, {0, 2, 6}, {0, 2, 3, 6}, at::kCPU);
  expect_pairs(layout.self_attention(),
               {{0, 2, 0, 2, 0, 0}, {2, 1, 2, 1, 0, 0}, {3, 3, 3, 3, 0, 1}});
  const SequenceLayout other = SequenceLayout::ragged(5, {4, 9}, {0, 2, 6}, {0, 1, 2, 6}, at::kCPU);
  EXPECT_NE(test::error_of([&] { layout.cross_attention(other); }), "");
}

} // namespace
} // namespace pentatron::nn
