// What a reduction in a lower precision sends, sums and leaves.
#include "pentatron/parallel/ddp/reduction.h"

#include <ATen/ATen.h>

#include <numeric>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "pentatron/parallel/ddp/bucket.h"
#include "tests/support/ranks.h"
#include "tests/support/tensors.h"

namespace pentatron::parallel {
namespace {

at::Tensor gradient_of(int rank) {
  return test::randn({256}, static_cast<uint64_t>(rank) + 1, at::kFloat);
}

/// Each rank's gradient rounded to bf16, summed in fp32, rounded once.
at::Tensor rounded_sum(int first, int ranks) {
  at::Tensor sum = at::zeros({256}, at::kFloat);
  for (int r = first; r < first + ranks; ++r)
    sum += gradient_of(r).to(at::kBFloat16).to(at::kFloat);
  return sum.to(at::kBFloat16).to(at::kFloat);
}

Bucket bucket_of(std::vector<int64_t> shards) {
  Bucket bucket;
  bucket.length = std::accumulate(shards.begin(), shards.end(), int64_t{0});
  bucket.shards = std::move(shards);
  return bucket;
}

TEST(Reducer, SendsBf16AndSumsInFp32) {
  for (const std::vector<int64_t>& shards :
       {std::vector<int64_t>{384}, {128, 128, 128}, {64, 320, 0}}) {
    const bool split = shards.size() > 1;
    const Bucket bucket = bucket_of(shards);
    test::run_ranks(3, [&](const comm::Group& dp) {
      Reducer reducer({.shard = split ? dp : comm::Group(),
                       .replicas = split ? comm::Group() : dp,
                       .dtype = at::kFloat,
                       .wire = at::kBFloat16});
      const at::Tensor gradient = at::cat({gradient_of(dp.rank()), at::zeros({64 * 3 * 2 - 256})});
      Reducer::Reduction reduction = reducer.start(gradient, bucket);
      const at::Tensor owned = reducer.finish(reduction);
      const at::Tensor sum = at::cat({rounded_sum(0, 3), at::zeros({64 * 3 * 2 - 256})});
      test::expect_close(owned, split ? shard_of(sum, bucket, dp.rank()) : sum);
    });
  }
}

TEST(Reducer, SendsTheSumsOfShardsInBf16Too) {
  test::run_ranks(4, [](const comm::Group& world) {
    const comm::Group shard = world.split(world.rank() / 2, world.rank(), "shard"),
                      replicas = world.split(world.rank() % 2, world.rank(), "replicas");
    Reducer reducer(
        {.shard = shard, .replicas = replicas, .dtype = at::kFloat, .wire = at::kBFloat16});
    const at::Tensor gradient = gradient_of(world.rank());
    const Bucket bucket = bucket_of({128, 128});
    Reducer::Reduction reduction = reducer.start(gradient, bucket);
    const at::Tensor owned = reducer.finish(reduction);
    reducer.sum_over_replicas({owned});
    const at::Tensor sum = (rounded_sum(0, 2) + rounded_sum(2, 2)).to(at::kBFloat16).to(at::kFloat);
    test::expect_close(owned, shard_of(sum, bucket, shard.rank()));
  });
}

TEST(Reducer, RoundsNothingOnOneRank) {
  Reducer reducer({.dtype = at::kFloat, .wire = at::kBFloat16});
  const at::Tensor gradient = gradient_of(0);
  const Bucket bucket = bucket_of({256});
  Reducer::Reduction reduction = reducer.start(gradient, bucket);
  test::expect_close(reducer.finish(reduction), gradient_of(0));
}

} // namespace
} // namespace pentatron::parallel
