#include "pentatron/comm/parallel_groups.h"

#include "pentatron/base/error.h"
#include "pentatron/comm/collectives.h"
#include "tests/support/ranks.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <set>

namespace pentatron::comm {
namespace {

using Groups = std::vector<std::vector<int>>;
using testing::HasSubstr;

TEST(RankGroups, AreThoseOfMegatronsExample) {
  const AxisSizes sizes = {{"tp", 2}, {"dp", 2}, {"pp", 2}};
  EXPECT_EQ(rank_groups(sizes, "tp-dp-pp", "tp"), (Groups{{0, 1}, {2, 3}, {4, 5}, {6, 7}}));
  EXPECT_EQ(rank_groups(sizes, "tp-dp-pp", "dp"), (Groups{{0, 2}, {1, 3}, {4, 6}, {5, 7}}));
  EXPECT_EQ(rank_groups(sizes, "tp-dp-pp", "pp"), (Groups{{0, 4}, {1, 5}, {2, 6}, {3, 7}}));
  EXPECT_EQ(rank_groups(sizes, "tp-dp-pp", "tp-pp"), (Groups{{0, 1, 4, 5}, {2, 3, 6, 7}}));
  EXPECT_EQ(rank_groups(sizes, "tp-dp-pp", ""), (Groups{{0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}}));
}

TEST(RankGroups, FollowTheOrder) {
  const AxisSizes sizes = {{"tp", 2}, {"dp", 2}, {"pp", 2}};
  EXPECT_EQ(rank_groups(sizes, "tp-cp-ep-pp-dp", "pp"), (Groups{{0, 2}, {1, 3}, {4, 6}, {5, 7}}));
  // The order of the names asked for does not matter; that of the ranks does.
  EXPECT_EQ(rank_groups(sizes, kDefaultOrder, "pp-tp"), rank_groups(sizes, kDefaultOrder, "tp-pp"));
}

TEST(RankGroups, PartitionTheWorldForEverySetOfAxes) {
  const AxisSizes sizes = {{"tp", 3}, {"cp", 2}, {"dp", 5}, {"pp", 4}};
  for (const char* axes :
       {"tp", "cp", "dp", "pp", "dp-cp", "tp-cp", "tp-pp", "tp-dp-cp", "tp-cp-dp-pp", "ep"}) {
    std::set<int> seen;
    for (const auto& group : rank_groups(sizes, kDefaultOrder, axes)) {
      EXPECT_TRUE(std::is_sorted(group.begin(), group.end())) << axes;
      const AxisSizes first = coordinates(sizes, kDefaultOrder, group[0]);
      for (const int rank : group) {
        EXPECT_TRUE(seen.insert(rank).second) << axes << " has rank " << rank << " twice";
        for (const auto& [axis, coordinate] : coordinates(sizes, kDefaultOrder, rank)) {
          const auto names = split_axes(axes);
          if (std::find(names.begin(), names.end(), axis) == names.end()) {
            EXPECT_EQ(coordinate, first.at(axis));
          }
        }
      }
    }
    EXPECT_EQ(seen.size(), 120u) << axes;
  }
}

TEST(RankGroups, RefuseWhatIsNoMesh) {
  EXPECT_THROW(rank_groups({{"tp", 2}}, "dp-pp", "dp"), ConfigError);
  EXPECT_THROW(rank_groups({{"tp", 2}}, "tp-dp", "cp"), ConfigError);
  EXPECT_THROW(rank_groups({{"tp", 0}}, "tp-dp", "tp"), ConfigError);
  EXPECT_THROW(rank_groups({{"tp", 2}}, "tp-tp", "tp"), ConfigError);
  EXPECT_THROW(rank_groups({{"tp", 2}}, "tp-", "tp"), ConfigError);
  EXPECT_THROW(world_size({{"tp", 1 << 20}, {"dp", 1 << 20}}), ConfigError);
}

TEST(ExpertAxes, CountTheSameRanksAgain) {
  // 16 ranks: tp 2, cp 2, dp 4 for dense layers; etp 1, ep 4, edp 4 for experts.
  const AxisSizes sizes = {{"tp", 2}, {"cp", 2}, {"dp", 4}};
  const ExpertAxes experts = expert_axes(sizes, kDefaultOrder, 4, 1);
  EXPECT_EQ(experts.order, "etp-ep-edp-pp");
  EXPECT_EQ(experts.sizes, (AxisSizes{{"etp", 1}, {"ep", 4}, {"edp", 4}, {"pp", 1}}));
  EXPECT_EQ(rank_groups(experts.sizes, experts.order, "ep"),
            (Groups{{0, 1, 2, 3}, {4, 5, 6, 7}, {8, 9, 10, 11}, {12, 13, 14, 15}}));
  EXPECT_EQ(rank_groups(experts.sizes, experts.order, "edp"),
            (Groups{{0, 4, 8, 12}, {1, 5, 9, 13}, {2, 6, 10, 14}, {3, 7, 11, 15}}));
}

TEST(ExpertAxes, WithoutExpertsTheyAreTheDenseOnes) {
  for (const char* order : {"tp-cp-ep-dp-pp", "tp-ep-dp-pp", "tp-cp-ep-pp-dp"}) {
    const AxisSizes sizes = {{"tp", 2}, {"dp", 3}, {"pp", 2}};
    const ExpertAxes experts = expert_axes(sizes, order, 1, 0);
    for (const auto& [expert, dense] :
         std::map<std::string, std::string>{{"etp", "tp"}, {"edp", "dp"}, {"pp", "pp"}})
      EXPECT_EQ(rank_groups(experts.sizes, experts.order, expert),
                rank_groups(sizes, order, dense));
  }
}

TEST(ExpertAxes, PipelinesCoincideForEverySize) {
  for (int tp = 1; tp <= 4; tp *= 2) {
    for (int cp = 1; cp <= 2; ++cp) {
      for (int dp = 1; dp <= 4; ++dp) {
        for (int ep = 1; ep <= 8; ep *= 2) {
          const AxisSizes sizes = {{"tp", tp}, {"cp", cp}, {"dp", dp}, {"pp", 3}};
          if (cp * dp * tp % ep != 0) {
            EXPECT_THROW(expert_axes(sizes, kDefaultOrder, ep, 1), ConfigError);
            continue;
          }
          const ExpertAxes experts = expert_axes(sizes, kDefaultOrder, ep, 1);
          EXPECT_EQ(world_size(experts.sizes), world_size(sizes));
          EXPECT_EQ(rank_groups(experts.sizes, experts.order, "pp"),
                    rank_groups(sizes, kDefaultOrder, "pp"));
        }
      }
    }
  }
  EXPECT_THROW(expert_axes({{"tp", 2}, {"cp", 2}, {"dp", 2}, {"pp", 2}}, "tp-cp-ep-pp-dp", 4, 0),
               ConfigError);
}

std::vector<NeededGroup> groups_of(const std::vector<std::string>& axes) {
  std::vector<NeededGroup> needed;
  for (const std::string& names : axes) needed.push_back(NeededGroup::of_axes(names));
  return needed;
}

int64_t summed_ranks(const Group& world, const Group& group) {
  return all_reduce(at::full({1}, world.rank(), at::kLong), ReduceOp::kSum, group).item<int64_t>();
}

TEST(ExpertAxes, HaveGroups) {
  test::run_ranks(8, [&](const Group& world) {
    const ParallelGroups groups(world, {.tp = 2, .pp = 2, .ep = 2, .etp = 1},
                                groups_of({"ep", "edp", "etp", "ep-etp-pp"}));
    EXPECT_EQ(groups.get("ep").size(), 2);
    EXPECT_EQ(groups.get("edp").size(), 2);
    EXPECT_EQ(groups.get("etp").size(), 1);
    EXPECT_EQ(groups.get("ep-etp-pp").size(), 4);
    for (const char* axis : {"ep", "edp", "etp"}) {
      EXPECT_EQ(groups.get(axis).rank(), groups.coordinate(axis));
      EXPECT_EQ(groups.get(axis).size(), groups.size(axis));
    }
    const int first = world.rank() / 2 * 2;
    EXPECT_EQ(summed_ranks(world, groups.get("ep")), first + first + 1);
  });
}

struct Layout {
  int world, tp, cp, dp, pp;
};

class GroupsOf : public testing::TestWithParam<Layout> {};

INSTANTIATE_TEST_SUITE_P(Layouts, GroupsOf,
                         testing::Values(Layout{1, 1, 1, 0, 1}, Layout{2, 2, 1, 0, 1},
                                         Layout{3, 1, 1, 0, 3}, Layout{4, 2, 1, 2, 1},
                                         Layout{6, 3, 1, 0, 2}, Layout{16, 2, 2, 2, 2}));

TEST_P(GroupsOf, SumOverTheirOwnRanks) {
  const Layout layout = GetParam();
  const std::vector<std::string> all = {"tp",    "cp",    "dp",    "pp",
                                        "dp-cp", "tp-cp", "tp-pp", "tp-dp-cp"};
  test::run_ranks(layout.world, [&](const Group& world) {
    const ParallelGroups groups(
        world, {.tp = layout.tp, .cp = layout.cp, .dp = layout.dp, .pp = layout.pp},
        groups_of(all));
    for (const std::string& axes : all) {
      const Group& group = groups.get(axes);
      EXPECT_EQ(group.name(), axes);
      EXPECT_EQ(group.ranks()[static_cast<size_t>(group.rank())], world.rank());
      for (const auto& members : rank_groups(groups.sizes(), kDefaultOrder, axes)) {
        if (std::find(members.begin(), members.end(), world.rank()) != members.end()) {
          EXPECT_EQ(group.ranks(), members);
        }
      }
      EXPECT_EQ(summed_ranks(world, group),
                std::accumulate(group.ranks().begin(), group.ranks().end(), int64_t{0}));
    }
    for (const char* axis : {"tp", "cp", "dp", "pp"}) {
      EXPECT_EQ(groups.get(axis).rank(), groups.coordinate(axis));
      EXPECT_EQ(groups.get(axis).size(), groups.size(axis));
    }
  });
}

TEST(ParallelGroups, HavePartsOfAnAxisInTheirOrder) {
  test::run_ranks(8, [&](const Group& world) {
    std::vector<NeededGroup> needed = groups_of({"tp", "pp"});
    needed.push_back({"pairs", "pp", {{0, 1}, {2, 3}}});
    needed.push_back({"ends", "pp", {{3, 0}}});
    needed.push_back({"same ends", "pp", {{3, 0}}});
    const ParallelGroups groups(world, {.tp = 2, .pp = 4}, needed);
    const int stage = groups.pp().rank();
    const Group& pair = groups.get("pairs");
    EXPECT_EQ(pair.size(), 2);
    EXPECT_EQ(pair.rank(), stage % 2);
    const int first = world.rank() - 2 * (stage % 2); // its neighbour is one stage on
    EXPECT_EQ(summed_ranks(world, pair), first + first + 2);
    if (stage == 0 || stage == 3) {
      EXPECT_EQ(groups.get("ends").rank(), stage == 3 ? 0 : 1);
      EXPECT_EQ(&groups.get("ends").backend(), &groups.get("same ends").backend());
    } else {
      EXPECT_THAT(test::error_of([&] { groups.get("ends"); }), HasSubstr("is not in a group ends"));
    }
  });
}

TEST(ParallelGroups, AreNoOthersThanTheRunLists) {
  const ParallelGroups one;
  for (const char* axes : {"tp", "dp", "pp"}) EXPECT_EQ(one.get(axes).size(), 1);
  EXPECT_EQ(one.size("cp"), 1);
  EXPECT_EQ(one.size("ep"), 1);
  EXPECT_EQ(one.describe(), "rank 0 of 1 (pp=0 dp=0 cp=0 tp=0)");
  for (const char* axes : {"cp", "ep", "edp", "dp-cp", "xp"})
    EXPECT_THAT(test::error_of([&] { one.get(axes); }),
                HasSubstr(std::string("internal error: the group ") + axes + " was not listed"));
  EXPECT_THAT(test::error_of([&] { one.size("xp"); }), HasSubstr("no layout has the axis xp"));
  const auto error = [](const std::vector<NeededGroup>& needed) {
    return test::error_of([&] { ParallelGroups(Group("world"), {}, needed); });
  };
  EXPECT_THAT(error({{"part", "pp", {{0}}}}), HasSubstr("part of pp, which it does not list"));
  EXPECT_THAT(error(groups_of({"tp", "tp"})), HasSubstr("lists the group tp twice"));
}

TEST(ParallelGroupsErrors, NameTheSizesAndWhatWorks) {
  const auto error = [](int world, const ParallelGroups::Layout& layout) {
    return test::error_of(
        [&] { test::run_ranks(world, [&](const Group& w) { ParallelGroups(w, layout, {}); }); });
  };
  EXPECT_THAT(error(3, {.tp = 2}),
              HasSubstr("tp=2 cp=1 pp=1 needs 2 ranks, which does not divide the 3 ranks"));
  EXPECT_THAT(error(3, {.tp = 2}), HasSubstr("try: a world of 4 ranks"));
  EXPECT_THAT(error(4, {.tp = 2, .dp = 1}), HasSubstr("dp=1 needs 2 ranks, but the world has 4"));
  EXPECT_THAT(error(1, {.tp = 0}), HasSubstr("axis tp has size 0"));
}

} // namespace
} // namespace pentatron::comm
