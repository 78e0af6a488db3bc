#include "pentatron/nn/shard_spec.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include <fmt/format.h>

#include "pentatron/base/error.h"
#include "pentatron/base/planted_bug.h"
#include "pentatron/config/violations.h"

namespace pentatron::nn {

namespace {

struct Interval {
  int64_t global = 0, local = 0, size = 0;
};

/// What a rank holds of one dimension.
struct DimensionShare {
  std::vector<Interval> intervals;
  int64_t extent = 0; // of the local tensor, padding included
};

DimensionShare padded_share(const ShardSpec& spec, int64_t n, AxisPosition at) {
  const int64_t multiple = spec.shard_multiple;
  const int64_t each = ((n + at.size - 1) / at.size + multiple - 1) / multiple * multiple;
  const int64_t begin = std::min<int64_t>(n, at.rank * each);
  const int64_t real = std::min<int64_t>(each, n - begin);
  DimensionShare share{{}, each};
  if (real > 0) share.intervals.push_back({begin, 0, real});
  return share;
}

DimensionShare share_of(const ShardSpec& spec, int dim, const Coordinates& where) {
  const int64_t n = spec.shape[static_cast<size_t>(dim)];
  AxisPosition at;
  std::string axis_name;
  for (const auto& [axis, placement] : spec.placements) {
    if (placement.kind != Placement::Kind::kShard || placement.dim != dim) continue;
    const auto found = where.find(axis);
    if (found != where.end() && found->second.size > 1) {
      PT_DCHECK(at.size == 1); // one axis shards a dimension
      at = found->second;
      axis_name = axis;
    } else {
      axis_name = axis_name.empty() ? axis : axis_name;
    }
  }
  if (spec.shard_multiple > 0 && !axis_name.empty()) return padded_share(spec, n, at);
  std::vector<FusedPart> parts = spec.parts;
  if (dim != spec.parts_dim || parts.empty() || planted("fused_parts_cut_as_one"))
    parts = {{"", n, 1}};
  DimensionShare share;
  int64_t global = 0;
  for (const FusedPart& part : parts) {
    if (part.in_groups && part.pieces < at.size && at.size % part.pieces == 0) {
      const int64_t piece = planted("kv_head_of_another_group") ? at.rank % part.pieces
                                                                : at.rank / (at.size / part.pieces);
      share.intervals.push_back({global + piece * part.piece_size, share.extent, part.piece_size});
      share.extent += part.piece_size;
      global += part.pieces * part.piece_size;
      continue;
    }
    if (part.pieces % at.size != 0) {
      raise<ConfigError>(
          "{}{}{} has {} pieces, which cannot be divided by {}={}\n  try: a size of {} in {{{}}}{}",
          spec.name, part.name.empty() ? "" : " part ", part.name, part.pieces, axis_name, at.size,
          axis_name, config::divisors(part.pieces),
          part.in_groups ? fmt::format(" or a multiple of {}", part.pieces) : "");
    }
    const int64_t rows = part.pieces / at.size * part.piece_size;
    if (rows > 0) share.intervals.push_back({global + at.rank * rows, share.extent, rows});
    share.extent += rows;
    global += part.pieces * part.piece_size;
  }
  if (global != n) {
    raise<ShapeError>("the parts of {} cover {} rows of {}", spec.name, global, n);
  }
  return share;
}

std::vector<DimensionShare> shares(const ShardSpec& spec, const Coordinates& where) {
  std::vector<DimensionShare> result;
  for (size_t dim = 0; dim < spec.shape.size(); ++dim) {
    result.push_back(share_of(spec, static_cast<int>(dim), where));
  }
  return result;
}

} // namespace

Placement ShardSpec::placement(const std::string& axis) const {
  const auto found = placements.find(axis);
  if (found != placements.end()) return found->second;
  return axis == "dp" || axis == "cp" ? Placement::partial() : Placement::replicate();
}

int64_t ShardSpec::numel() const {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

std::vector<int64_t> local_shape(const ShardSpec& spec, const Coordinates& where) {
  std::vector<int64_t> shape;
  for (const DimensionShare& share : shares(spec, where)) shape.push_back(share.extent);
  return shape;
}

std::vector<LocalBox> local_boxes(const ShardSpec& spec, const Coordinates& where) {
  std::vector<LocalBox> boxes = {{}};
  for (const DimensionShare& share : shares(spec, where)) {
    std::vector<LocalBox> next;
    for (const LocalBox& box : boxes) {
      for (const Interval& interval : share.intervals) {
        next.push_back(box);
        next.back().global.push_back(interval.global);
        next.back().local.push_back(interval.local);
        next.back().size.push_back(interval.size);
      }
    }
    boxes = std::move(next);
  }
  return boxes;
}

namespace {

std::vector<int64_t> steps_of(const std::vector<int64_t>& shape) {
  std::vector<int64_t> steps(shape.size(), 1);
  for (size_t dim = shape.size(); dim-- > 1;) steps[dim - 1] = steps[dim] * shape[dim];
  return steps;
}

/// A dimension of a box, or several that are as one in both tensors.
struct Extent {
  int64_t size = 1, local_step = 1, global_step = 1;
};

/// Of a box, the last dimension first.
std::vector<Extent> extents_of(const LocalBox& box, const std::vector<int64_t>& local_steps,
                               const std::vector<int64_t>& global_steps) {
  std::vector<Extent> extents = {{}};
  for (size_t dim = box.size.size(); dim-- > 0;) {
    Extent& inner = extents.back();
    if (inner.size * inner.local_step == local_steps[dim] &&
        inner.size * inner.global_step == global_steps[dim])
      inner.size *= box.size[dim];
    else
      extents.push_back({box.size[dim], local_steps[dim], global_steps[dim]});
  }
  return extents;
}

/// Appends what lies in the range; `runs` are counted from the begin of the tensor.
void append_inside(const GlobalRuns& runs, const FlatRange& range, std::vector<GlobalRuns>& found) {
  const int64_t end = range.begin + range.size, step = runs.local_step;
  // The runs [first, last) have elements of the range.
  const int64_t before = range.begin - runs.local - runs.size, reach = end - runs.local;
  int64_t first = before < 0 ? 0 : before / step + 1;
  int64_t last = reach <= 0 ? 0 : std::min(runs.count, (reach - 1) / step + 1);
  const auto append = [&](int64_t run, int64_t count) {
    const int64_t begin = runs.local + run * step, cut = std::max<int64_t>(0, range.begin - begin);
    found.push_back({.local = begin + cut - range.begin,
                     .global = runs.global + run * runs.global_step + cut,
                     .size = std::min(runs.size, end - begin) - cut,
                     .count = count,
                     .local_step = step,
                     .global_step = runs.global_step});
  };
  if (first < last && runs.local + first * step < range.begin) append(first++, 1);
  const bool cut_last = first < last && runs.local + (last - 1) * step + runs.size > end;
  if (cut_last) --last;
  if (first < last) append(first, last - first);
  if (cut_last) append(last, 1);
}

} // namespace

std::vector<GlobalRuns> global_runs(const ShardSpec& spec, const Coordinates& where,
                                    const FlatRange& range) {
  const std::vector<int64_t> local_steps = steps_of(local_shape(spec, where)),
                             global_steps = steps_of(spec.shape);
  std::vector<GlobalRuns> found;
  for (const LocalBox& box : local_boxes(spec, where)) {
    const std::vector<Extent> extents = extents_of(box, local_steps, global_steps);
    GlobalRuns runs{
        .size = extents[0].size, .local_step = extents[0].size, .global_step = extents[0].size};
    for (size_t dim = 0; dim < box.size.size(); ++dim) {
      runs.local += box.local[dim] * local_steps[dim];
      runs.global += box.global[dim] * global_steps[dim];
    }
    if (extents.size() > 1) {
      runs.count = extents[1].size;
      runs.local_step = extents[1].local_step;
      runs.global_step = extents[1].global_step;
    }
    int64_t outer = 1;
    for (size_t k = 2; k < extents.size(); ++k) outer *= extents[k].size;
    for (int64_t i = 0; i < outer; ++i) {
      GlobalRuns own = runs;
      int64_t rest = i;
      for (size_t k = 2; k < extents.size(); ++k) {
        own.local += rest % extents[k].size * extents[k].local_step;
        own.global += rest % extents[k].size * extents[k].global_step;
        rest /= extents[k].size;
      }
      if (own.size > 0) append_inside(own, range, found);
    }
  }
  return found;
}

namespace {

/// Rows of the rank's tensor that belong to parts held in groups, as flat ranges.
std::vector<FlatRange> grouped_ranges(const ShardSpec& spec, const Coordinates& where) {
  std::vector<FlatRange> ranges;
  const auto tp = where.find("tp");
  if (tp == where.end() || spec.placement("tp") != Placement::shard(0)) return ranges;
  const int64_t size = tp->second.size;
  const std::vector<int64_t> shape = local_shape(spec, where);
  const int64_t row =
      std::accumulate(shape.begin() + 1, shape.end(), int64_t{1}, std::multiplies<>());
  int64_t begin = 0;
  for (const FusedPart& part : spec.parts) {
    const bool grouped = part.in_groups && part.pieces < size;
    const int64_t rows = (grouped ? 1 : part.pieces / size) * part.piece_size * row;
    if (grouped && !ranges.empty() && ranges.back().begin + ranges.back().size == begin) {
      ranges.back().size += rows;
    } else if (grouped) {
      ranges.push_back({begin, rows});
    }
    begin += rows;
  }
  return ranges;
}

FlatRange whole(const ShardSpec& spec, const Coordinates& where) {
  const std::vector<int64_t> shape = local_shape(spec, where);
  return {0, std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>())};
}

/// What is left of [0, total.size) without `holes`.
std::vector<FlatRange> without(const FlatRange& total, const std::vector<FlatRange>& holes) {
  std::vector<FlatRange> ranges;
  int64_t begin = 0;
  for (const FlatRange& hole : holes) {
    if (hole.begin > begin) ranges.push_back({begin, hole.begin - begin});
    begin = hole.begin + hole.size;
  }
  if (begin < total.size) ranges.push_back({begin, total.size - begin});
  return ranges;
}

/// Position of this rank in the group of tp ranks that hold the same piece of `part`.
bool is_first_of_group(const ShardSpec& spec, AxisPosition tp) {
  if (planted("kv_heads_counted_by_every_rank")) return true;
  for (const FusedPart& part : spec.parts) {
    if (part.in_groups && part.pieces < tp.size && tp.rank % (tp.size / part.pieces) != 0)
      return false;
  }
  return true;
}

} // namespace

std::string shared_axis(std::string_view param) {
  return std::string(kSharedAxis) + std::string(param);
}

std::string shared_axis_of(const ShardSpec& spec, const Coordinates& where) {
  for (const auto& [axis, position] : where) {
    if (axis.starts_with(kSharedAxis) && position.size > 1 &&
        spec.placement(axis).kind == Placement::Kind::kPartial)
      return axis;
  }
  return {};
}

std::vector<FlatRange> counted_ranges(const ShardSpec& spec, const Coordinates& where) {
  const bool first = std::all_of(where.begin(), where.end(), [&](const auto& entry) {
    if (entry.first.starts_with(kSharedAxis) && planted("tied_gradient_counted_twice")) return true;
    if (entry.second.rank > 0 && planted("norm_misses_shards")) return false;
    return entry.second.rank == 0 || spec.placement(entry.first).kind == Placement::Kind::kShard;
  });
  if (!first) return {};
  const auto tp = where.find("tp");
  if (tp == where.end() || is_first_of_group(spec, tp->second)) return {whole(spec, where)};
  return without(whole(spec, where), grouped_ranges(spec, where));
}

std::vector<FlatRange> partial_ranges(const ShardSpec& spec, const Coordinates& where,
                                      const std::string& axis) {
  if (axis == kTpReplicaAxis) return grouped_ranges(spec, where);
  if (spec.placement(axis).kind != Placement::Kind::kPartial) return {};
  return {whole(spec, where)};
}

PartRange part_range(const ShardSpec& spec, const std::string& part) {
  if (part.empty()) return {0, spec.shape.at(static_cast<size_t>(spec.parts_dim))};
  int64_t begin = 0;
  for (const FusedPart& candidate : spec.parts) {
    const int64_t rows = candidate.pieces * candidate.piece_size;
    if (candidate.name == part) return {begin, rows};
    begin += rows;
  }
  raise<ShapeError>("{} has no part named {}", spec.name, part);
}

} // namespace pentatron::nn
