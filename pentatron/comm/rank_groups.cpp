#include "pentatron/comm/rank_groups.h"

#include "pentatron/base/error.h"

#include <algorithm>
#include <cstdint>
#include <limits>

namespace pentatron::comm {

namespace {

bool contains(const std::vector<std::string>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

int extent(const AxisSizes& sizes, std::string_view axis) {
  const auto found = sizes.find(axis);
  return found == sizes.end() ? 1 : found->second;
}

std::vector<std::string> checked_order(const AxisSizes& sizes, std::string_view order) {
  std::vector<std::string> names = split_axes(order);
  for (const auto& [axis, size] : sizes)
    if (size > 1 && !contains(names, axis))
      raise<ConfigError>("axis {} has {} ranks, but the order {} does not contain it", axis, size,
                         order);
  return names;
}

/// Ranks at which the axes of `names` chosen by `varies` take all their values, the others 0.
std::vector<int> offsets(const AxisSizes& sizes, const std::vector<std::string>& names,
                         const auto& varies) {
  std::vector<int> result = {0};
  int stride = 1;
  for (const std::string& axis : names) {
    const int size = extent(sizes, axis);
    if (varies(axis)) {
      const std::vector<int> inner = result;
      for (int i = 1; i < size; ++i)
        for (const int offset : inner) result.push_back(offset + i * stride);
    }
    stride *= size;
  }
  return result;
}

} // namespace

std::vector<std::string> split_axes(std::string_view axes) {
  std::vector<std::string> names;
  for (size_t start = 0; start < axes.size() + 1 && !axes.empty();) {
    const size_t end = std::min(axes.find('-', start), axes.size());
    const std::string name(axes.substr(start, end - start));
    if (name.empty() || contains(names, name))
      raise<ConfigError>("\"{}\" is not a list of distinct axes such as {}", axes, kDefaultOrder);
    names.push_back(name);
    start = end + 1;
  }
  return names;
}

int world_size(const AxisSizes& sizes) {
  int64_t product = 1;
  for (const auto& [axis, size] : sizes) {
    if (size < 1) raise<ConfigError>("axis {} has size {}, but needs at least 1", axis, size);
    product *= size;
    if (product > std::numeric_limits<int>::max())
      raise<ConfigError>("the axes up to {}={} span more ranks than an int can count", axis, size);
  }
  return static_cast<int>(product);
}

std::vector<std::vector<int>> rank_groups(const AxisSizes& sizes, std::string_view order,
                                          std::string_view axes) {
  const int world = world_size(sizes);
  const std::vector<std::string> names = checked_order(sizes, order);
  const std::vector<std::string> inside = split_axes(axes);
  for (const std::string& axis : inside)
    if (!contains(names, axis))
      raise<ConfigError>("there is no axis {} in the order {}", axis, order);
  const auto is_inside = [&](const std::string& axis) { return contains(inside, axis); };
  const std::vector<int> members = offsets(sizes, names, is_inside);
  std::vector<std::vector<int>> groups;
  groups.reserve(world / members.size());
  for (const int first :
       offsets(sizes, names, [&](const std::string& axis) { return !is_inside(axis); })) {
    std::vector<int>& group = groups.emplace_back(members);
    for (int& rank : group) rank += first;
  }
  return groups;
}

ExpertAxes expert_axes(const AxisSizes& sizes, std::string_view order, int ep, int etp) {
  ExpertAxes experts;
  for (const std::string& axis : split_axes(order)) {
    if (axis == "cp") continue;
    const std::string name = axis == "tp" ? "etp" : axis == "dp" ? "edp" : axis;
    experts.order += (experts.order.empty() ? "" : "-") + name;
  }
  if (etp == 0) etp = extent(sizes, "tp");
  const int world = world_size(sizes), pp = extent(sizes, "pp");
  experts.sizes = {{"etp", etp}, {"ep", ep}, {"pp", pp}};
  const int taken = world_size(experts.sizes);
  if (world % taken != 0)
    raise<ConfigError>(
        "etp={} ep={} pp={} takes {} ranks, which does not divide the {} ranks of the "
        "world\n  try: an ep that divides {}",
        etp, ep, pp, taken, world, world / pp);
  experts.sizes["edp"] = world / taken;
  const auto groups = [](const AxisSizes& of, std::string_view in) {
    auto all = rank_groups(of, in, "pp");
    std::sort(all.begin(), all.end());
    return all;
  };
  const bool no_experts = ep == 1 && etp == extent(sizes, "tp");
  if (!no_experts && groups(experts.sizes, experts.order) != groups(sizes, order))
    raise<ConfigError>("with the order {} and cp={}, experts and dense layers would have different "
                       "pipeline ranks\n  try: the order {}",
                       order, extent(sizes, "cp"), kDefaultOrder);
  return experts;
}

AxisSizes coordinates(const AxisSizes& sizes, std::string_view order, int rank) {
  const int world = world_size(sizes);
  if (rank < 0 || rank >= world)
    raise<ConfigError>("rank {} is outside a world of {} ranks", rank, world);
  AxisSizes result;
  for (const std::string& axis : checked_order(sizes, order)) {
    const int size = extent(sizes, axis);
    result[axis] = rank % size;
    rank /= size;
  }
  return result;
}

} // namespace pentatron::comm
