/// The groups of ranks that a run uses: the axes of its layout (tensor, context, data, pipeline and
/// expert parallel), and parts of them.
///
/// A cheap value, made once at the start and handed down in place of single groups.
#pragma once

#include "pentatron/comm/group.h"
#include "pentatron/comm/rank_groups.h"

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace pentatron::comm {

/// A group that ParallelGroups makes.
struct NeededGroup {
  std::string name; ///< what ParallelGroups::get takes
  std::string axes; ///< one axis or several ("dp-cp"); expert axes are etp, ep and edp
  /// Positions in the group of `axes` that form a group each, in this order; the other positions
  /// have no such group. Empty: all of `axes`.
  std::vector<std::vector<int>> parts = {};
  GroupUse use = GroupUse::kCollectives;

  static NeededGroup of_axes(const std::string& axes, GroupUse use = GroupUse::kCollectives) {
    return {axes, axes, {}, use};
  }
};

class ParallelGroups {
 public:
  struct Layout {
    int tp = 1;
    int cp = 1;
    int dp = 0; ///< 0: the ranks that the other axes leave
    int pp = 1;
    int ep = 1;
    int etp = 0;                      ///< tensor ranks of an expert; 0: tp
    std::string order{kDefaultOrder}; ///< the first axis varies fastest
  };

  /// One rank, whose groups tp, dp and pp are groups of one.
  ParallelGroups();
  /// Collective over the world: makes exactly `needed`, in this order, which is the same on all
  /// ranks. Equal groups for the same use under several names are made once. Throws ConfigError if
  /// the sizes do not span the world.
  ParallelGroups(const Group& world, const Layout& layout, const std::vector<NeededGroup>& needed);

  const Group& world() const;
  /// Throws Error, an internal one, if the run does not list the group or this rank is in none.
  const Group& get(std::string_view name) const;
  bool lists(std::string_view name) const; ///< whether the run has such a group
  const Group& tp() const { return get("tp"); }
  const Group& dp() const { return get("dp"); }
  const Group& pp() const { return get("pp"); }

  /// Of a single axis, whether or not it has a group; expert axes too.
  int size(std::string_view axis) const;
  int coordinate(std::string_view axis) const; ///< of this rank
  const AxisSizes& sizes() const;              ///< of the dense axes

  /// "rank 9 of 12 (pp=0 dp=1 cp=0 tp=3)"
  std::string describe() const;

 private:
  struct State;
  std::shared_ptr<const State> state_;
};

} // namespace pentatron::comm
