// FLOPs of attention: what the planner and the MFU figure count.
#include "pentatron/layers/attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace pentatron::layers {
namespace {

/// Pairs of a query and a key that it sees, in `documents` documents of `length` tokens.
double pairs(int64_t documents, int64_t length, int64_t window) {
  double sum = 0;
  for (int64_t i = 0; i < length; ++i)
    sum += static_cast<double>(window > 0 ? std::min(i + 1, window) : i + 1);
  return sum * static_cast<double>(documents);
}

TEST(AttentionCost, CountsBothDirectionsOfFullAttention) {
  const AttentionOptions o{
      .hidden = 64, .heads = 8, .kv_heads = 2, .head_size = 16, .mask = AttentionMask::kFull};
  const nn::Cost cost = Attention::cost(o, {.tokens = 300, .squared_lengths = 3 * 100 * 100});
  EXPECT_EQ(cost.forward_attention_flops, 4.0 * 3 * 100 * 100 * 8 * 16);
}

TEST(AttentionCost, CountsTheVisiblePairs) {
  AttentionOptions o{.hidden = 64, .heads = 8, .kv_heads = 2, .head_size = 16};
  const int64_t documents = 3, length = 1000;
  for (const int64_t window : {0, 1000, 2000, 500, 50}) {
    o.window = window;
    const double flops = Attention::cost(o, {.tokens = documents * length,
                                             .squared_lengths = documents * length * length})
                             .forward_attention_flops;
    // Two products of 2 FLOPs for each pair and feature; the diagonal counts half in the field's
    // formula, which leaves it below by about 1 / length (1 / window).
    const double expected = 4.0 * pairs(documents, length, window) * 8 * 16;
    EXPECT_NEAR(flops, expected, expected * (window == 50 ? 0.03 : 0.003)) << window;
  }
}

TEST(AttentionCost, AppliesTheWindowToEachDocument) {
  std::vector<int64_t> documents(6144, 1); // packed in a sample of 8192 tokens
  documents.push_back(2048);
  for (int64_t length = 1; length < 3000; length += 7) documents.push_back(length);
  nn::LayerShape shape;
  for (const int64_t length : documents) {
    shape.tokens += length;
    shape.squared_lengths += length * length;
    shape.lengths.add(length);
  }
  AttentionOptions o{.hidden = 64, .heads = 8, .kv_heads = 2, .head_size = 16};
  for (const AttentionMask mask : {AttentionMask::kCausal, AttentionMask::kFull}) {
    o.mask = mask;
    const double directions = mask == AttentionMask::kFull ? 2 : 1;
    for (const int64_t window : {0, 1, 2, 3, 5, 64, 100, 512, 999, 1280, 2048, 3000, 5000}) {
      o.window = window;
      double expected = 0; // the diagonal counts half
      for (const int64_t length : documents) {
        const int64_t seen = window > 0 ? std::min(length, window) : length;
        expected += directions * (2 * pairs(1, length, window) - static_cast<double>(seen));
      }
      const bool within_class = window == 100 || window == 999;
      EXPECT_NEAR(visible_squares(o, shape), expected, expected * (within_class ? 1e-3 : 1e-12))
          << window;
    }
  }
}

TEST(AttentionCost, OfEqualDocumentsIsTheSameWithTheirLengths) {
  const int64_t documents = 3, length = 1000;
  nn::LayerShape shape{.tokens = documents * length,
                       .squared_lengths = documents * length * length};
  nn::LayerShape with_lengths = shape;
  for (int64_t i = 0; i < documents; ++i) with_lengths.lengths.add(length);
  for (const int64_t window : {0, 1, 50, 999, 1000, 1001}) {
    const AttentionOptions o{.window = window};
    EXPECT_DOUBLE_EQ(visible_squares(o, with_lengths), visible_squares(o, shape)) << window;
  }
  EXPECT_EQ(visible_squares({.window = 5}, {.tokens = 7}), 0) << "no attention is counted";
}

} // namespace
} // namespace pentatron::layers
