#include "pentatron/nn/shard_spec.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "pentatron/base/error.h"

namespace pentatron::nn {
namespace {

const Placement kSplitRows = Placement::shard(0), kSplitColumns = Placement::shard(1);

Coordinates on_tp(int rank, int size) {
  return {{"tp", {rank, size}}};
}

/// Marks every element that the ranks' boxes cover in the global tensor.
std::vector<int> coverage(const ShardSpec& spec, int size) {
  std::vector<int> count(static_cast<size_t>(spec.numel()));
  for (int rank = 0; rank < size; ++rank) {
    for (const LocalBox& box : local_boxes(spec, on_tp(rank, size))) {
      for (int64_t i = 0; i < box.size[0]; ++i) {
        for (int64_t j = 0; j < box.size[1]; ++j) {
          ++count[static_cast<size_t>((box.global[0] + i) * spec.shape[1] + box.global[1] + j)];
        }
      }
    }
  }
  return count;
}

TEST(ShardSpec, BoxesTileEveryShardedTensorExactlyOnce) {
  const std::vector<ShardSpec> specs = {
      {.name = "rows", .shape = {12, 5}, .placements = {{"tp", kSplitRows}}},
      {.name = "columns", .shape = {5, 12}, .placements = {{"tp", kSplitColumns}}},
      {.name = "qkv",
       .shape = {4 * 6 + 4 * 3 + 4 * 3, 7},
       .parts = {{"q", 4, 6}, {"k", 4, 3}, {"v", 4, 3}},
       .placements = {{"tp", kSplitRows}}},
      {.name = "vocab",
       .shape = {257, 3},
       .shard_multiple = 64,
       .placements = {{"tp", kSplitRows}}}};
  for (const ShardSpec& spec : specs) {
    for (const int size : {1, 2, 4}) {
      for (const int count : coverage(spec, size))
        ASSERT_EQ(count, 1) << spec.name << " on " << size;
    }
  }
}

TEST(ShardSpec, FusedPartsAreShardedEachByItself) {
  const ShardSpec spec{.name = "fc1",
                       .shape = {8, 2},
                       .parts = {{"gate", 4, 1}, {"up", 4, 1}},
                       .placements = {{"tp", kSplitRows}}};
  const std::vector<LocalBox> boxes = local_boxes(spec, on_tp(1, 2));
  ASSERT_EQ(boxes.size(), 2u);
  EXPECT_EQ(boxes[0], (LocalBox{{2, 0}, {0, 0}, {2, 2}}));
  EXPECT_EQ(boxes[1], (LocalBox{{6, 0}, {2, 0}, {2, 2}}));
  EXPECT_EQ(part_range(spec, "up").begin, 4);
}

TEST(ShardSpec, PartsOfAStackLieBehindItsFirstDimension) {
  // Four experts, gate | up of 4 rows each: over two ranks of ep and two of etp.
  const ShardSpec spec{.name = "experts.fc1",
                       .shape = {4, 8, 3},
                       .parts = {{"gate", 4, 1}, {"up", 4, 1}},
                       .parts_dim = 1,
                       .stacked_dims = 1,
                       .placements = {{"ep", kSplitRows}, {"etp", kSplitColumns}}};
  std::vector<int> count(static_cast<size_t>(spec.numel()));
  for (int e = 0; e < 2; ++e) {
    for (int t = 0; t < 2; ++t) {
      const Coordinates where = {{"ep", {e, 2}}, {"etp", {t, 2}}};
      EXPECT_EQ(local_shape(spec, where), (std::vector<int64_t>{2, 4, 3}));
      const std::vector<LocalBox> boxes = local_boxes(spec, where);
      ASSERT_EQ(boxes.size(), 2u);
      EXPECT_EQ(boxes[1], (LocalBox{{2 * e, 4 + 2 * t, 0}, {0, 2, 0}, {2, 2, 3}}));
      EXPECT_EQ(counted_ranges(spec, where), (std::vector<FlatRange>{{0, 24}}));
      for (const LocalBox& box : boxes)
        for (int64_t i = 0; i < box.size[0]; ++i)
          for (int64_t j = 0; j < box.size[1]; ++j)
            for (int64_t k = 0; k < box.size[2]; ++k)
              ++count[static_cast<size_t>(((box.global[0] + i) * 8 + box.global[1] + j) * 3 +
                                          box.global[2] + k)];
    }
  }
  for (const int c : count) ASSERT_EQ(c, 1);
  EXPECT_EQ(part_range(spec, "up").begin, 4);
}

TEST(ShardSpec, VocabularyShardsAreRoundedUpAndTheLastMayBeEmpty) {
  const ShardSpec spec{
      .name = "vocab", .shape = {100, 1}, .shard_multiple = 64, .placements = {{"tp", kSplitRows}}};
  EXPECT_EQ(local_shape(spec, on_tp(0, 1))[0], 128);
  EXPECT_EQ(local_shape(spec, on_tp(3, 4))[0], 64);
  const auto real_rows = [&](int rank) {
    int64_t rows = 0;
    for (const LocalBox& box : local_boxes(spec, on_tp(rank, 4))) rows += box.size[0];
    return rows;
  };
  EXPECT_EQ(real_rows(0), 64);
  EXPECT_EQ(real_rows(1), 36);
  EXPECT_EQ(real_rows(2), 0);
}

TEST(ShardSpec, SizesThatDoNotDivideNameTheSizesThatDo) {
  const ShardSpec spec{
      .name = "qkv", .shape = {12, 2}, .parts = {{"q", 6, 2}}, .placements = {{"tp", kSplitRows}}};
  try {
    local_shape(spec, on_tp(0, 4));
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_NE(std::string(error.what()).find("{1, 2, 3, 6}"), std::string::npos) << error.what();
  }
}

TEST(ShardSpec, FewerUnitsThanRanksAreHeldInGroups) {
  const ShardSpec spec{.name = "qkv",
                       .shape = {24, 2},
                       .parts = {{"q", 8, 2}, {"k", 2, 2, true}, {"v", 2, 2, true}},
                       .placements = {{"tp", kSplitRows}}};
  const Coordinates first = on_tp(2, 4), second = on_tp(3, 4); // both hold piece 1 of k and v
  EXPECT_EQ(local_shape(spec, first), (std::vector<int64_t>{8, 2}));
  EXPECT_EQ(local_boxes(spec, second),
            (std::vector<LocalBox>{
                {{12, 0}, {0, 0}, {4, 2}}, {{18, 0}, {4, 0}, {2, 2}}, {{22, 0}, {6, 0}, {2, 2}}}));
  EXPECT_EQ(partial_ranges(spec, second, kTpReplicaAxis), (std::vector<FlatRange>{{8, 8}}));
  EXPECT_EQ(counted_ranges(spec, first), (std::vector<FlatRange>{{0, 16}}));
  EXPECT_EQ(counted_ranges(spec, second), (std::vector<FlatRange>{{0, 8}}));
  EXPECT_TRUE(partial_ranges(spec, on_tp(1, 2), kTpReplicaAxis).empty()); // a piece for every rank
  EXPECT_EQ(counted_ranges(spec, on_tp(1, 2)), (std::vector<FlatRange>{{0, 24}}));
  EXPECT_THROW(local_shape(spec, on_tp(0, 3)), ConfigError);
}

TEST(ShardSpec, OneReplicaCounts) {
  const ShardSpec norm{.name = "norm", .shape = {4}};
  const ShardSpec rows{.name = "rows", .shape = {4, 4}, .placements = {{"tp", kSplitRows}}};
  EXPECT_EQ(counted_ranges(norm, on_tp(0, 2)), (std::vector<FlatRange>{{0, 4}}));
  EXPECT_TRUE(counted_ranges(norm, on_tp(1, 2)).empty());
  EXPECT_EQ(counted_ranges(rows, on_tp(1, 2)), (std::vector<FlatRange>{{0, 8}}));
  EXPECT_TRUE(partial_ranges(norm, on_tp(0, 2), "tp").empty());
  EXPECT_EQ(partial_ranges(norm, on_tp(0, 2), "dp"), (std::vector<FlatRange>{{0, 4}}));
  EXPECT_EQ(norm.placement("dp").kind, Placement::Kind::kPartial);
}

/// Of the elements of a rank's tensor, flattened, where they are in the true one; -1: padding.
std::vector<int64_t> positions(const ShardSpec& spec, const Coordinates& where) {
  const std::vector<int64_t> shape = local_shape(spec, where);
  int64_t n = 1;
  for (const int64_t extent : shape) n *= extent;
  std::vector<int64_t> found(static_cast<size_t>(n), -1);
  for (const LocalBox& box : local_boxes(spec, where)) {
    int64_t count = 1;
    for (const int64_t extent : box.size) count *= extent;
    for (int64_t i = 0; i < count; ++i) {
      int64_t rest = i, local = 0, global = 0, local_step = 1, global_step = 1;
      for (size_t d = shape.size(); d-- > 0;) {
        const int64_t at = rest % box.size[d];
        rest /= box.size[d];
        local += (box.local[d] + at) * local_step;
        global += (box.global[d] + at) * global_step;
        local_step *= shape[d];
        global_step *= spec.shape[d];
      }
      found[static_cast<size_t>(local)] = global;
    }
  }
  return found;
}

TEST(GlobalRuns, AreWhereTheBoxesAre) {
  const auto split = [](int dim) {
    return std::map<std::string, Placement>{{"tp", Placement::shard(dim)}};
  };
  const std::vector<ShardSpec> specs = {
      {.name = "norm", .shape = {7}},
      {.name = "bias", .shape = {12}, .placements = split(0)},
      {.name = "rows", .shape = {12, 5}, .placements = split(0)},
      {.name = "columns", .shape = {5, 12}, .placements = split(1)},
      {.name = "column", .shape = {5, 4}, .placements = split(1)},
      {.name = "qkv",
       .shape = {16, 6},
       .parts = {{"q", 4, 2}, {"k", 2, 2, true}, {"v", 2, 2, true}},
       .placements = split(0)},
      {.name = "vocab", .shape = {14, 3}, .shard_multiple = 4, .placements = split(0)},
      {.name = "experts",
       .shape = {3, 8, 6},
       .parts = {{"gate", 4, 1}, {"up", 4, 1}},
       .parts_dim = 1,
       .stacked_dims = 1,
       .placements = split(1)},
      {.name = "down", .shape = {3, 6, 4}, .stacked_dims = 1, .placements = split(2)},
      {.name = "own experts",
       .shape = {4, 8, 6},
       .parts = {{"gate", 4, 1}, {"up", 4, 1}},
       .parts_dim = 1,
       .stacked_dims = 1,
       .placements = {{"ep", Placement::shard(0)}, {"tp", Placement::shard(1)}}},
      {.name = "columns of parts",
       .shape = {2, 4, 8},
       .parts = {{"gate", 2, 1}, {"up", 2, 1}},
       .parts_dim = 1,
       .stacked_dims = 1,
       .placements = split(2)},
      {.name = "patches", .shape = {2, 3, 4, 5}, .placements = split(2)}};
  for (const ShardSpec& spec : specs)
    for (const int size : {1, 2, 4})
      for (int rank = 0; rank < size; ++rank) {
        const Coordinates where = {{"tp", {rank, size}}, {"ep", {1, 2}}};
        const std::vector<int64_t> expected = positions(spec, where);
        const auto n = static_cast<int64_t>(expected.size());
        for (int64_t begin = 0; begin <= n; begin += n > 30 ? 5 : 1)
          for (int64_t end = begin; end <= n; end += n > 30 ? 7 : 1) {
            std::vector<int64_t> found(static_cast<size_t>(end - begin), -1);
            for (const GlobalRuns& runs : global_runs(spec, where, {begin, end - begin})) {
              ASSERT_GT(runs.count, 0);
              for (int64_t run = 0; run < runs.count; ++run)
                for (int64_t i = 0; i < runs.size; ++i) {
                  int64_t& slot =
                      found.at(static_cast<size_t>(runs.local + run * runs.local_step + i));
                  ASSERT_EQ(slot, -1) << spec.name << ": twice";
                  slot = runs.global + run * runs.global_step + i;
                }
            }
            ASSERT_TRUE(std::equal(found.begin(), found.end(), expected.begin() + begin))
                << spec.name << " " << rank << " of " << size << ", " << begin << " to " << end;
          }
      }
}

/// As few as a kernel for each wants: rows of a matrix are one, also those of all experts.
TEST(GlobalRuns, AreFew) {
  const ShardSpec columns{.name = "down",
                          .shape = {3, 6, 4},
                          .stacked_dims = 1,
                          .placements = {{"tp", Placement::shard(2)}}};
  const std::vector<GlobalRuns> runs = global_runs(columns, on_tp(1, 2), {0, 36});
  ASSERT_EQ(runs.size(), 1u);
  EXPECT_EQ(
      runs[0],
      (GlobalRuns{
          .local = 0, .global = 2, .size = 2, .count = 18, .local_step = 2, .global_step = 4}));
  EXPECT_EQ(global_runs(columns, on_tp(1, 2), {1, 34}).size(), 3u);
  EXPECT_EQ(global_runs({.name = "whole", .shape = {5, 7}}, {}, {3, 20}).size(), 1u);
}

} // namespace
} // namespace pentatron::nn
