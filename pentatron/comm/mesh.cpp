#include "pentatron/comm/mesh.h"

#include "pentatron/base/error.h"

#include <algorithm>
#include <array>

#include <fmt/ranges.h>

namespace pentatron::comm {

namespace {

constexpr std::array<std::string_view, 8> kGroups = {"tp",    "cp",    "dp",    "pp",
                                                     "dp-cp", "tp-cp", "tp-pp", "tp-dp-cp"};
constexpr std::array<std::string_view, 5> kExpertGroups = {"ep", "etp", "edp", "etp-ep",
                                                           "etp-ep-pp"};

std::string sorted(std::string_view axes) {
  std::vector<std::string> names = split_axes(axes);
  std::sort(names.begin(), names.end());
  return fmt::format("{}", fmt::join(names, "-"));
}

AxisSizes checked_sizes(int world, const Mesh::Options& options) {
  AxisSizes sizes = {{"tp", options.tp}, {"cp", options.cp}, {"pp", options.pp}};
  const int others = world_size(sizes);
  const auto text = [&] {
    return fmt::format("tp={} cp={} pp={}", options.tp, options.cp, options.pp);
  };
  if (options.dp < 0) raise<ConfigError>("axis dp has size {}, which is negative", options.dp);
  if (options.dp == 0 && world % others != 0)
    raise<ConfigError>("{} needs {} ranks, which does not divide the {} ranks of the world\n  try: "
                       "a world of {} ranks",
                       text(), others, world, others * (world / others + 1));
  sizes["dp"] = options.dp == 0 ? world / others : options.dp;
  if (world_size(sizes) != world)
    raise<ConfigError>("{} dp={} needs {} ranks, but the world has {}\n  try: a world of {} ranks",
                       text(), options.dp, world_size(sizes), world, world_size(sizes));
  return sizes;
}

} // namespace

struct Mesh::State {
  Group world;
  AxisSizes sizes;
  AxisSizes coordinates;
  std::map<std::string, Group, std::less<>> groups; ///< by sorted names
};

Mesh::Mesh() : Mesh(Group("world"), Options{}) {}

Mesh::Mesh(const Group& world, const Options& options) {
  auto state = std::make_shared<State>();
  state->world = world;
  state->sizes = checked_sizes(world.size(), options);
  state->coordinates = comm::coordinates(state->sizes, options.order, world.rank());
  // All ranks see groups of one size, so all make the same splits.
  const auto make = [&](const AxisSizes& sizes, std::string_view order, std::string_view axes) {
    const auto groups = rank_groups(sizes, order, axes);
    for (size_t color = 0; color < groups.size(); ++color) {
      const auto found = std::find(groups[color].begin(), groups[color].end(), world.rank());
      if (found == groups[color].end()) continue;
      state->groups[sorted(axes)] =
          groups[color].size() == 1
              ? Group(axes, world.ranks()[world.rank()])
              : world.split(static_cast<int>(color),
                            static_cast<int>(found - groups[color].begin()), axes);
    }
  };
  for (const std::string_view axes : kGroups) make(state->sizes, options.order, axes);
  const ExpertAxes experts = expert_axes(state->sizes, options.order, options.ep, options.etp);
  for (const std::string_view axes : kExpertGroups) make(experts.sizes, experts.order, axes);
  state_ = std::move(state);
}

const Group& Mesh::world() const {
  return state_->world;
}

const Group& Mesh::axis(std::string_view axes) const {
  const auto found = state_->groups.find(sorted(axes));
  if (found == state_->groups.end())
    raise<ConfigError>("the mesh has no group {}\n  try: {}, {}", axes, fmt::join(kGroups, ", "),
                       fmt::join(kExpertGroups, ", "));
  return found->second;
}

int Mesh::size(std::string_view axis) const {
  const auto found = state_->sizes.find(axis);
  if (found == state_->sizes.end()) raise<ConfigError>("the mesh has no axis {}", axis);
  return found->second;
}

int Mesh::coordinate(std::string_view axis) const {
  const auto found = state_->coordinates.find(axis);
  if (found == state_->coordinates.end()) raise<ConfigError>("the mesh has no axis {}", axis);
  return found->second;
}

const AxisSizes& Mesh::sizes() const {
  return state_->sizes;
}

std::string Mesh::describe() const {
  return fmt::format("rank {} of {} (pp={} dp={} cp={} tp={})", state_->world.rank(),
                     state_->world.size(), coordinate("pp"), coordinate("dp"), coordinate("cp"),
                     coordinate("tp"));
}

} // namespace pentatron::comm
