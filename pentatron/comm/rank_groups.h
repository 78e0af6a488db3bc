/// Which ranks of the world form the groups of a set of axes. Pure functions: no communication, no
/// group.
///
/// Ranks count through the axes of `order`, the first varying fastest. Source: Megatron-LM's rank
/// generator.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace pentatron::comm {

using AxisSizes = std::map<std::string, int, std::less<>>; ///< an axis that is not named has size 1

inline constexpr std::string_view kDefaultOrder = "tp-cp-ep-dp-pp";

/// The names in "tp-cp-dp". Throws ConfigError on an empty or repeated name.
std::vector<std::string> split_axes(std::string_view axes);

/// The product of the sizes. Throws ConfigError if it does not fit into an int or an extent is not
/// positive.
int world_size(const AxisSizes& sizes);

/// All groups of `axes` ("tp", "dp-cp", "" for groups of one), each as world ranks: inside a group
/// the axes of `axes` vary, between groups the others, in both the first of `order` fastest.
///   {tp 2, dp 2, pp 2}, "tp-dp-pp", "dp" -> {0 2} {1 3} {4 6} {5 7}
/// Throws ConfigError if `axes` names one that `order` lacks, or `sizes` one above 1.
std::vector<std::vector<int>> rank_groups(const AxisSizes& sizes, std::string_view order,
                                          std::string_view axes);

/// How the ranks of a dense layout are counted again for experts: sizes of etp, ep, edp and pp, and
/// their order. Context parallel ranks are among the edp.
struct ExpertAxes {
  AxisSizes sizes;
  std::string order;
};

/// `sizes` and `order` are the dense ones (tp, cp, dp, pp); etp 0: tp. Throws ConfigError if etp,
/// ep and pp do not divide the world, or if the pipeline groups of both countings differ where
/// experts are split.
ExpertAxes expert_axes(const AxisSizes& sizes, std::string_view order, int ep, int etp);

/// The coordinate of a rank on each axis of `order`.
AxisSizes coordinates(const AxisSizes& sizes, std::string_view order, int rank);

} // namespace pentatron::comm
