// How parameters become buckets, and buckets shards.
#include "pentatron/parallel/ddp/bucket.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <map>
#include <numeric>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "pentatron/nn/module.h"

namespace pentatron::parallel {
namespace {

using testing::Each;
using testing::ElementsAre;

/// a (segment 0), b and c (segment 1), d (segment 2).
struct Parameters {
  Parameters() {
    const nn::Scope scope(list, at::kFloat, {});
    scope.vector("a", 100, {});
    scope.of_segment(1).vector("b", 64, {});
    scope.of_segment(1).vector("c", 1, {});
    scope.of_segment(2).vector("d", 65, {});
  }
  nn::ParamList list;
};

std::vector<nn::Param*> pointers(nn::ParamList& list) {
  std::vector<nn::Param*> all;
  for (nn::Param& param : list) all.push_back(&param);
  return all;
}

std::vector<std::string> names(const Bucket& bucket) {
  std::vector<std::string> result;
  for (const Bucket::Slot& slot : bucket.slots) result.push_back(slot.param->name());
  return result;
}

TEST(Buckets, BeginWithTheLastParameterAndCloseAtTheirSize) {
  Parameters params;
  const auto buckets = make_buckets(pointers(params.list), {.bucket_size = 150, .num_shards = 3});
  ASSERT_EQ(buckets.size(), 2u);
  EXPECT_THAT(names(buckets[0]), ElementsAre("d", "c"));
  EXPECT_EQ(buckets[0].length, 192); // 128 + 64
  EXPECT_THAT(buckets[0].segments, ElementsAre(1, 2));
  EXPECT_THAT(names(buckets[1]), ElementsAre("b", "a"));
  EXPECT_EQ(buckets[1].slots[1].begin, 64);
  EXPECT_EQ(buckets[1].length, 192);
}

TEST(Buckets, HoldOneUnitWhereUnitsAreSplit) {
  Parameters params;
  params.list.find("d").used_by(0);
  const auto buckets = make_buckets(pointers(params.list),
                                    {.bucket_size = 1000, .num_shards = 2, .split_segments = true});
  ASSERT_EQ(buckets.size(), 3u);
  EXPECT_THAT(names(buckets[0]), ElementsAre("d"));
  EXPECT_THAT(buckets[0].segments, ElementsAre(0, 2));
  EXPECT_THAT(names(buckets[1]), ElementsAre("c", "b"));
  EXPECT_THAT(names(buckets[2]), ElementsAre("a"));
}

TEST(Buckets, LeaveWhatSeveralStagesHoldAlone) {
  nn::ParamList list;
  const nn::Scope scope(list, at::kFloat, {});
  scope.vector("a", 3, {});
  scope.shared_param("table", {.name = {}, .shape = {7}}, {}, {1, 2});
  scope.shared_param("of one stage", {.name = {}, .shape = {7}}, {}, {});
  scope.vector("b", 3, {});
  const auto buckets = make_buckets(pointers(list), {.bucket_size = 1000});
  ASSERT_EQ(buckets.size(), 3u);
  EXPECT_THAT(names(buckets[0]), ElementsAre("b", "of one stage"));
  EXPECT_THAT(names(buckets[1]), ElementsAre("table"));
  EXPECT_EQ(buckets[1].shared_axis, "shared:table");
  EXPECT_EQ(buckets[0].shared_axis + buckets[2].shared_axis, "");
}

TEST(Shards, CoverEveryElementOnce) {
  Parameters params;
  for (const int64_t shards : {1, 2, 3, 5}) {
    for (const Bucket& bucket :
         make_buckets(pointers(params.list), {.bucket_size = 150, .num_shards = shards})) {
      EXPECT_THAT(bucket.shards, Each(bucket.length / shards));
      EXPECT_EQ(bucket.length % (64 * shards), 0);
      const at::Tensor flat = at::zeros({bucket.length});
      for (int64_t i = 0; i < shards; ++i) {
        for (const nn::Piece& piece : pieces_of(bucket, i))
          shard_of(flat, bucket, i).narrow(0, piece.begin, piece.size).add_(1);
      }
      for (const Bucket::Slot& slot : bucket.slots)
        EXPECT_TRUE(view_of(flat, slot).eq(1).all().item<bool>()) << slot.param->name();
      int64_t elements = 0;
      for (const Bucket::Slot& slot : bucket.slots) elements += slot.param->numel();
      EXPECT_EQ(flat.sum().item<double>(), static_cast<double>(elements));
    }
  }
}

TEST(Buckets, HoldOneFamily) {
  nn::ParamList list;
  const nn::Scope scope(list, at::kFloat, {});
  for (const char* name : {"a", "b", "c", "d", "e", "f"}) scope.vector(name, 3, {});
  nn::Scope(list, at::kDouble, {}).vector("double", 3, {});
  list.find("b").trainable = false;
  list.find("d").trainable = false;
  list.find("c").rule = "another";
  list.find("e").group = nn::ReductionGroup::kExpert;
  const auto buckets = make_buckets(pointers(list), {.bucket_size = 1000});
  // A family goes on behind parameters of another.
  ASSERT_EQ(buckets.size(), 5u);
  EXPECT_THAT(names(buckets[0]), ElementsAre("double"));
  EXPECT_THAT(names(buckets[1]), ElementsAre("f", "a"));
  EXPECT_THAT(names(buckets[2]), ElementsAre("e"));
  EXPECT_THAT(names(buckets[3]), ElementsAre("d", "b"));
  EXPECT_THAT(names(buckets[4]), ElementsAre("c"));
}

TEST(Buckets, OfWhatSeveralStagesHoldFrozenAreLikeOthers) {
  nn::ParamList list;
  const nn::Scope scope(list, at::kFloat, {});
  scope.vector("a", 3, {}).trainable = false;
  scope.shared_param("table", {.name = {}, .shape = {7}}, {}, {1, 2}).trainable = false;
  const auto buckets = make_buckets(pointers(list), {.bucket_size = 1000});
  ASSERT_EQ(buckets.size(), 1u);
  EXPECT_EQ(buckets[0].shared_axis, "") << "there is no gradient to sum";
}

/// What an optimizer needs whole is in one shard.
TEST(Shards, AreCutBetweenParametersThatStayWhole) {
  nn::ParamList list;
  const nn::Scope scope(list, at::kFloat, {});
  for (const int64_t size : {100, 3, 900, 64, 65, 500, 1})
    scope.vector("p" + std::to_string(size), size, {}).whole = true;
  for (const int64_t shards : {1, 2, 3, 5}) {
    const auto buckets = make_buckets(pointers(list), {.bucket_size = 10, .num_shards = shards});
    std::map<std::string, int64_t> held;
    for (const Bucket& bucket : buckets) {
      EXPECT_EQ(std::ssize(bucket.shards), shards);
      EXPECT_EQ(std::accumulate(bucket.shards.begin(), bucket.shards.end(), int64_t{0}),
                bucket.length);
      for (int64_t i = 0; i < shards; ++i)
        for (const nn::Piece& piece : pieces_of(bucket, i)) {
          EXPECT_EQ(piece.param_begin, 0);
          EXPECT_EQ(piece.size, piece.param->numel());
          EXPECT_EQ(piece.begin % 64, 0);
          ++held[piece.param->name()];
        }
      // No two lie on each other.
      const at::Tensor flat = at::zeros({bucket.length});
      for (const Bucket::Slot& slot : bucket.slots) view_of(flat, slot).add_(1);
      EXPECT_LE(flat.max().item<double>(), 1);
    }
    EXPECT_EQ(held.size(), list.size());
    for (const auto& [name, times] : held) EXPECT_EQ(times, 1) << name;
  }
  // The largest alone, the others beside it; nothing is filled up.
  const auto one = make_buckets(pointers(list), {.bucket_size = 10'000, .num_shards = 2});
  ASSERT_EQ(one.size(), 1u);
  EXPECT_EQ(one[0].length, 128 + 64 + 960 + 64 + 128 + 512 + 64);
  EXPECT_THAT(one[0].shards, ElementsAre(960, 128 + 64 + 64 + 128 + 512 + 64));
}

/// Layers of the same parameters give every rank about as much, also where a layer has fewer
/// parameters than there are ranks.
TEST(Shards, OfWholeParametersAreBalancedOverBuckets) {
  nn::ParamList list;
  const nn::Scope scope(list, at::kFloat, {});
  for (int64_t layer = 0; layer < 24; ++layer)
    for (const int64_t size : {3072, 1024, 4096, 2048})
      scope.of_segment(layer).vector(fmt::format("{}.{}", layer, size), size, {}).whole = true;
  for (const int64_t shards : {2, 3, 6, 16}) {
    const auto buckets = make_buckets(
        pointers(list), {.bucket_size = 1 << 20, .num_shards = shards, .split_segments = true});
    EXPECT_EQ(buckets.size(), 24u);
    std::vector<int64_t> held(static_cast<size_t>(shards), 0);
    for (const Bucket& bucket : buckets) {
      EXPECT_EQ(bucket.length, 10240);
      for (size_t i = 0; i < held.size(); ++i) held[i] += bucket.shards[i];
    }
    EXPECT_LE(std::ranges::max(held) - std::ranges::min(held), 4096) << shards;
  }
}

/// A pipeline rank gives what it shares with others to the rank that they give it to.
TEST(Shards, OfASharedParameterDoNotDependOnOthers) {
  const auto shards_with = [](std::vector<int64_t> others) {
    nn::ParamList list;
    const nn::Scope scope(list, at::kFloat, {});
    for (const int64_t size : others)
      scope.vector("p" + std::to_string(size), size, {}).whole = true;
    scope.shared_param("table", {.name = {}, .shape = {70}}, {}, {1, 2}).whole = true;
    for (const Bucket& bucket : make_buckets(pointers(list), {.bucket_size = 1, .num_shards = 3}))
      if (!bucket.shared_axis.empty()) return bucket.shards;
    return std::vector<int64_t>();
  };
  EXPECT_THAT(shards_with({}), ElementsAre(128, 0, 0));
  EXPECT_EQ(shards_with({500, 3, 80}), shards_with({}));
}

} // namespace
} // namespace pentatron::parallel
