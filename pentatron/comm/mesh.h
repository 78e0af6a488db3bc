/// The groups of this rank, by axis: tensor, context, data, pipeline and expert parallel.
///
/// A cheap value, made once at the start. A default-constructed Mesh is one rank, whose every group
/// is a group of one.
#pragma once

#include "pentatron/comm/group.h"
#include "pentatron/comm/rank_groups.h"

#include <memory>
#include <string>
#include <string_view>

namespace pentatron::comm {

class Mesh {
 public:
  struct Options {
    int tp = 1;
    int cp = 1;
    int dp = 0; ///< 0: the ranks that the other axes leave
    int pp = 1;
    int ep = 1;
    int etp = 0;                      ///< tensor ranks of an expert; 0: tp
    std::string order{kDefaultOrder}; ///< the first axis varies fastest
  };

  Mesh();
  /// Collective over the world. Makes the groups of the single axes and of "dp-cp" (gradients),
  /// "tp-cp", "tp-pp" (the ranks of one model) and "tp-dp-cp", and for experts, whose ranks are
  /// counted again (expert_axes), "ep", "etp", "edp", "etp-ep" and "etp-ep-pp"; `order` decides the
  /// ranks inside each. Throws ConfigError if the sizes do not span the world.
  Mesh(const Group& world, const Options& options);

  const Group& world() const;
  /// The group of one axis or of a set above, in any order: "tp", "dp-cp". Throws ConfigError on
  /// another.
  const Group& axis(std::string_view axes) const;
  int size(std::string_view axis) const;       ///< of a single axis
  int coordinate(std::string_view axis) const; ///< of this rank
  const AxisSizes& sizes() const;

  /// "rank 9 of 12 (pp=0 dp=1 cp=0 tp=3)"
  std::string describe() const;

 private:
  struct State;
  std::shared_ptr<const State> state_;
};

} // namespace pentatron::comm
