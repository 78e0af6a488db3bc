// FLOPs of attention: what the planner and the MFU figure count.
#include "pentatron/layers/attention.h"

#include <gtest/gtest.h>

#include <algorithm>

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

} // namespace
} // namespace pentatron::layers
