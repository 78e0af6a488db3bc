// Buckets of distances against Hugging Face's, and a table that layers share.
#include "pentatron/layers/relative_bias.h"

#include "pentatron/nn/param_store.h"
#include "tests/nn/op_fixture.h"

#include <gtest/gtest.h>

namespace pentatron::layers {
namespace {

/// Where the bucket changes: {first distance, bucket}, as T5's `_relative_position_bucket` gives it
/// for key - query from the first distance on.
struct Edge {
  int64_t distance, bucket;
};

void expect_edges(const RelativeBiasOptions& o, int64_t span, const std::vector<Edge>& edges) {
  const at::Tensor buckets = RelativeBias::bucket_of_columns(span, o, at::kCPU);
  ASSERT_EQ(buckets.numel(), 2 * span - 1);
  size_t e = 0;
  for (int64_t ahead = 1 - span; ahead < span; ++ahead) { // key - query
    while (e + 1 < edges.size() && edges[e + 1].distance <= ahead) ++e;
    EXPECT_EQ(buckets[span - 1 - ahead].item<int64_t>(), edges[e].bucket) << ahead;
  }
}

TEST(RelativeBiasBuckets, BidirectionalOnesAreT5s) {
  expect_edges({.buckets = 32, .max_distance = 128}, 300,
               {{-299, 15}, {-90, 14}, {-63, 13}, {-45, 12}, {-31, 11}, {-22, 10}, {-15, 9},
                {-11, 8},   {-7, 7},   {-6, 6},   {-5, 5},   {-4, 4},   {-3, 3},   {-2, 2},
                {-1, 1},    {0, 0},    {1, 17},   {2, 18},   {3, 19},   {4, 20},   {5, 21},
                {6, 22},    {7, 23},   {8, 24},   {12, 25},  {16, 26},  {23, 27},  {32, 28},
                {46, 29},   {64, 30},  {91, 31}});
}

TEST(RelativeBiasBuckets, CausalOnesAreT5s) {
  expect_edges({.buckets = 32, .max_distance = 128, .bidirectional = false}, 300,
               {{-299, 31}, {-112, 30}, {-98, 29}, {-86, 28}, {-76, 27}, {-66, 26}, {-58, 25},
                {-51, 24},  {-45, 23},  {-39, 22}, {-34, 21}, {-30, 20}, {-26, 19}, {-23, 18},
                {-20, 17},  {-18, 16},  {-15, 15}, {-14, 14}, {-13, 13}, {-12, 12}, {-11, 11},
                {-10, 10},  {-9, 9},    {-8, 8},   {-7, 7},   {-6, 6},   {-5, 5},   {-4, 4},
                {-3, 3},    {-2, 2},    {-1, 1},   {0, 0}});
}

TEST(RelativeBiasBuckets, OtherSizesAreT5s) {
  expect_edges({.buckets = 12, .max_distance = 20}, 40,
               {{-39, 5},
                {-10, 4},
                {-5, 3},
                {-2, 2},
                {-1, 1},
                {0, 0},
                {1, 7},
                {2, 8},
                {3, 9},
                {6, 10},
                {11, 11}});
}

TEST(RelativeBias, LayersThatShareItAddTheirGradients) {
  nn::ParamList params;
  const RelativeBiasOptions options{.heads = 3, .buckets = 8, .max_distance = 6};
  const RelativeBias bias(nn::Scope(params, at::kDouble, {}) / "relative_bias", options, {});
  const nn::ResidentStore store(params, at::kCPU);
  nn::Param& weight = params.find("relative_bias.weight");
  const at::Tensor values = test::randn({8, 3}, 1);
  nn::load_global(weight, values);
  test::Pass pass(4);
  const at::Tensor a = bias.table(4, pass.ctx), b = bias.table(9, pass.ctx);
  EXPECT_EQ(weight.outstanding_uses(), 2);
  const at::Tensor da = test::randn({3, 7}, 2), db = test::randn({3, 17}, 3);
  const auto rows = [&](int64_t span) {
    return RelativeBias::bucket_of_columns(span, options, at::kCPU);
  };
  test::expect_close(a, values.index_select(0, rows(4)).t(), {0, 0});
  a.backward(da);
  EXPECT_EQ(weight.outstanding_uses(), 1);
  b.backward(db);
  EXPECT_EQ(weight.outstanding_uses(), 0);
  at::Tensor expected = at::zeros({8, 3}, at::kDouble);
  for (int64_t c = 0; c < 7; ++c) expected[rows(4)[c].item<int64_t>()] += da.select(1, c);
  for (int64_t c = 0; c < 17; ++c) expected[rows(9)[c].item<int64_t>()] += db.select(1, c);
  test::expect_close(weight.main_grad(), expected, {1e-13, 1e-13});
}

} // namespace
} // namespace pentatron::layers
