#include "pentatron/comm/parallel_groups.h"

#include "pentatron/base/error.h"

#include <algorithm>
#include <optional>
#include <tuple>

#include <fmt/ranges.h>

namespace pentatron::comm {

namespace {

AxisSizes checked_sizes(int world, const ParallelGroups::Layout& layout) {
  AxisSizes sizes = {{"tp", layout.tp}, {"cp", layout.cp}, {"pp", layout.pp}};
  const int others = world_size(sizes);
  const auto text = [&] {
    return fmt::format("tp={} cp={} pp={}", layout.tp, layout.cp, layout.pp);
  };
  if (layout.dp < 0) raise<ConfigError>("axis dp has size {}, which is negative", layout.dp);
  if (layout.dp == 0 && world % others != 0)
    raise<ConfigError>("{} needs {} ranks, which does not divide the {} ranks of the world\n  try: "
                       "a world of {} ranks",
                       text(), others, world, others * (world / others + 1));
  sizes["dp"] = layout.dp == 0 ? world / others : layout.dp;
  if (world_size(sizes) != world)
    raise<ConfigError>("{} dp={} needs {} ranks, but the world has {}\n  try: a world of {} ranks",
                       text(), layout.dp, world_size(sizes), world, world_size(sizes));
  return sizes;
}

bool counts_experts(std::string_view axes) {
  const std::vector<std::string> names = split_axes(axes);
  return std::ranges::any_of(
      names, [](const std::string& n) { return n == "etp" || n == "ep" || n == "edp"; });
}

int on_axis(const AxisSizes& values, std::string_view axis) {
  const auto found = values.find(axis);
  if (found == values.end()) raise<Error>("internal error: no layout has the axis {}", axis);
  return found->second;
}

/// Collective over the world. All ranks see groups of one size, so all make the same splits.
Group split_axis(const Group& world, const AxisSizes& sizes, std::string_view order,
                 const NeededGroup& needed) {
  const auto groups = rank_groups(sizes, order, needed.axes);
  for (size_t color = 0; color < groups.size(); ++color) {
    const std::vector<int>& members = groups[color];
    const auto found = std::find(members.begin(), members.end(), world.rank());
    if (found == members.end()) continue;
    if (members.size() == 1)
      return Group(needed.name, world.ranks()[static_cast<size_t>(world.rank())]);
    return world.split(static_cast<int>(color), static_cast<int>(found - members.begin()),
                       needed.name, needed.use);
  }
  PT_DCHECK(false);
}

/// Collective over `whole`; none for a rank that is in no part.
std::optional<Group> split_parts(const Group& whole, const NeededGroup& needed) {
  int color = Group::kUnused, key = whole.rank();
  for (size_t i = 0; i < needed.parts.size(); ++i) {
    const std::vector<int>& part = needed.parts[i];
    const auto found = std::find(part.begin(), part.end(), whole.rank());
    if (found == part.end()) continue;
    color = static_cast<int>(i);
    key = static_cast<int>(found - part.begin());
  }
  const Group part = whole.split(color, key, needed.name, needed.use);
  if (color == Group::kUnused) return std::nullopt;
  return part;
}

} // namespace

struct ParallelGroups::State {
  Group world;
  AxisSizes sizes, coordinates;               // of the dense axes
  AxisSizes expert_sizes, expert_coordinates; // of etp, ep, edp, pp
  std::map<std::string, std::optional<Group>, std::less<>> groups;
};

ParallelGroups::ParallelGroups()
    : ParallelGroups(
          Group("world"), {},
          {NeededGroup::of_axes("tp"), NeededGroup::of_axes("dp"), NeededGroup::of_axes("pp")}) {}

ParallelGroups::ParallelGroups(const Group& world, const Layout& layout,
                               const std::vector<NeededGroup>& needed) {
  auto state = std::make_shared<State>();
  state->world = world;
  state->sizes = checked_sizes(world.size(), layout);
  state->coordinates = comm::coordinates(state->sizes, layout.order, world.rank());
  const ExpertAxes experts = expert_axes(state->sizes, layout.order, layout.ep, layout.etp);
  state->expert_sizes = experts.sizes;
  state->expert_coordinates = comm::coordinates(experts.sizes, experts.order, world.rank());
  const auto make_axes = [&](const NeededGroup& group) {
    return counts_experts(group.axes) ? split_axis(world, experts.sizes, experts.order, group)
                                      : split_axis(world, state->sizes, layout.order, group);
  };
  using Members = std::tuple<std::string, std::vector<std::vector<int>>, GroupUse>;
  std::map<Members, std::string> made; // the name that has them already
  for (const NeededGroup& group : needed) {
    const auto [twin, fresh] = made.try_emplace({group.axes, group.parts, group.use}, group.name);
    if (state->groups.contains(group.name))
      raise<Error>("internal error: the run lists the group {} twice", group.name);
    std::optional<Group>& slot = state->groups[group.name];
    if (!fresh) {
      slot = state->groups.at(twin->second);
    } else if (group.parts.empty()) {
      slot = make_axes(group);
    } else {
      const auto whole = std::ranges::find_if(made, [&](const auto& one) {
        const auto& [axes, parts, use] = one.first;
        return axes == group.axes && parts.empty();
      });
      if (whole == made.end())
        raise<Error>("internal error: the run lists the group {}, a part of {}, which it does not "
                     "list before",
                     group.name, group.axes);
      slot = split_parts(*state->groups.at(whole->second), group);
    }
  }
  state_ = std::move(state);
}

const Group& ParallelGroups::world() const {
  return state_->world;
}

const Group& ParallelGroups::get(std::string_view name) const {
  const auto found = state_->groups.find(name);
  if (found == state_->groups.end()) {
    std::vector<std::string> names;
    for (const auto& [listed, group] : state_->groups) names.push_back(listed);
    raise<Error>("internal error: the group {} was not listed when the groups of this run were "
                 "made: {}",
                 name, fmt::join(names, ", "));
  }
  if (!found->second) raise<Error>("internal error: {} is not in a group {}", describe(), name);
  return *found->second;
}

bool ParallelGroups::lists(std::string_view name) const {
  return state_->groups.find(name) != state_->groups.end();
}

int ParallelGroups::size(std::string_view axis) const {
  return on_axis(counts_experts(axis) ? state_->expert_sizes : state_->sizes, axis);
}

int ParallelGroups::coordinate(std::string_view axis) const {
  return on_axis(counts_experts(axis) ? state_->expert_coordinates : state_->coordinates, axis);
}

const AxisSizes& ParallelGroups::sizes() const {
  return state_->sizes;
}

std::string ParallelGroups::describe() const {
  return fmt::format("rank {} of {} (pp={} dp={} cp={} tp={})", state_->world.rank(),
                     state_->world.size(), coordinate("pp"), coordinate("dp"), coordinate("cp"),
                     coordinate("tp"));
}

} // namespace pentatron::comm
