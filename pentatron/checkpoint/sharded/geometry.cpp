#include "pentatron/checkpoint/sharded/geometry.h"

#include <algorithm>

#include <fmt/format.h>

#include "pentatron/base/error.h"

namespace pentatron::checkpoint {

std::optional<int64_t> checked_numel(std::span<const int64_t> shape) {
  constexpr int64_t kLimit = int64_t{1} << 60;
  int64_t product = 1;
  bool empty = false;
  for (const int64_t extent : shape) {
    if (extent < 0) return std::nullopt;
    if (extent == 0) {
      empty = true;
    } else if (__builtin_mul_overflow(product, extent, &product) || product >= kLimit) {
      return std::nullopt;
    }
  }
  return empty ? 0 : product;
}

int64_t numel(std::span<const int64_t> shape) {
  int64_t product = 1;
  for (const int64_t extent : shape) product *= extent;
  return product;
}

Box whole_box(std::span<const int64_t> shape) {
  return {.offset = std::vector<int64_t>(shape.size()), .size = {shape.begin(), shape.end()}};
}

bool fits(const Box& box, std::span<const int64_t> shape) {
  if (box.offset.size() != shape.size() || box.size.size() != shape.size()) return false;
  for (size_t d = 0; d < shape.size(); ++d) {
    if (box.offset[d] < 0 || box.size[d] < 0 || box.offset[d] > shape[d] ||
        box.size[d] > shape[d] - box.offset[d])
      return false;
  }
  return true;
}

std::optional<Box> intersect(const Box& a, const Box& b) {
  PT_DCHECK(a.offset.size() == b.offset.size());
  Box both;
  for (size_t d = 0; d < a.offset.size(); ++d) {
    const int64_t begin = std::max(a.offset[d], b.offset[d]);
    const int64_t end = std::min(a.offset[d] + a.size[d], b.offset[d] + b.size[d]);
    if (begin >= end) return std::nullopt;
    both.offset.push_back(begin);
    both.size.push_back(end - begin);
  }
  return both;
}

std::string to_text(const Box& box) {
  std::string text;
  for (size_t d = 0; d < box.offset.size(); ++d) {
    int64_t end = 0; // of a box that was read from a damaged file, anything
    if (__builtin_add_overflow(box.offset[d], box.size[d], &end))
      text += fmt::format("{}{}+{}", d == 0 ? "" : ", ", box.offset[d], box.size[d]);
    else
      text += fmt::format("{}{}:{}", d == 0 ? "" : ", ", box.offset[d], end);
  }
  return fmt::format("[{}]", text);
}

std::vector<int64_t> row_major_strides(std::span<const int64_t> shape) {
  std::vector<int64_t> strides(shape.size(), 1);
  for (size_t d = shape.size(); d-- > 1;) strides[d - 1] = strides[d] * shape[d];
  return strides;
}

namespace {

/// The range [begin, end) of the flattened dimensions from `d` on, with `prefix` before them.
void add_range(std::span<const int64_t> shape, std::span<const int64_t> strides, size_t d,
               int64_t begin, int64_t end, Box& prefix, std::vector<Box>& out) {
  if (begin >= end) return;
  const auto add_rows = [&](int64_t first, int64_t rows) {
    Box box = prefix;
    box.offset[d] = first;
    box.size[d] = rows;
    for (size_t inner = d + 1; inner < shape.size(); ++inner) {
      box.offset[inner] = 0;
      box.size[inner] = shape[inner];
    }
    out.push_back(std::move(box));
  };
  if (d + 1 == shape.size()) return add_rows(begin, end - begin);
  const auto add_part = [&](int64_t row, int64_t from, int64_t to) {
    prefix.offset[d] = row;
    prefix.size[d] = 1;
    add_range(shape, strides, d + 1, from, to, prefix, out);
  };
  const int64_t row = strides[d];
  int64_t first = begin / row;
  if (const int64_t from = begin % row; from != 0 || end - begin < row) {
    add_part(first, from, std::min(row, end - first * row));
    ++first;
  }
  if (const int64_t rows = end / row - first; rows > 0) {
    add_rows(first, rows);
    first += rows;
  }
  if (first * row < end) add_part(first, 0, end - first * row);
}

} // namespace

std::vector<Box> flat_range_boxes(std::span<const int64_t> shape, int64_t begin, int64_t count) {
  PT_DCHECK(begin >= 0 && count >= 0 && begin + count <= numel(shape));
  std::vector<Box> boxes;
  if (count == 0) return boxes;
  if (shape.empty()) return {Box{}};
  Box prefix = whole_box(shape);
  add_range(shape, row_major_strides(shape), 0, begin, begin + count, prefix, boxes);
  return boxes;
}

Runs::Runs(const Box& part, const Box& source, const Box& target)
    : Runs(part, source, target, row_major_strides(target.size)) {}

Runs::Runs(const Box& part, const Box& source, const Box& target,
           std::span<const int64_t> target_strides) {
  const std::vector<int64_t> source_strides = row_major_strides(source.size);
  run_.count = 1;
  std::vector<Loop> inner_first;
  for (size_t d = part.size.size(); d-- > 0;) {
    const int64_t size = part.size[d];
    run_.source += (part.offset[d] - source.offset[d]) * source_strides[d];
    run_.target += (part.offset[d] - target.offset[d]) * target_strides[d];
    if (size == 0) done_ = true;
    if (size == 1) continue;
    const Loop loop{.size = size, .source = source_strides[d], .target = target_strides[d]};
    if (inner_first.empty() && loop.source == run_.count && loop.target == run_.count) {
      run_.count *= size; // still one run
    } else if (!inner_first.empty() &&
               loop.source == inner_first.back().source * inner_first.back().size &&
               loop.target == inner_first.back().target * inner_first.back().size) {
      inner_first.back().size *= size; // goes on with the same steps
    } else {
      inner_first.push_back(loop);
    }
  }
  loops_.assign(inner_first.rbegin(), inner_first.rend());
}

bool Runs::next(CopyRun& run) {
  if (done_) return false;
  run = run_;
  done_ = true;
  for (size_t i = loops_.size(); i-- > 0;) {
    Loop& loop = loops_[i];
    run_.source += loop.source;
    run_.target += loop.target;
    if (++loop.at < loop.size) {
      done_ = false;
      break;
    }
    run_.source -= loop.source * loop.size;
    run_.target -= loop.target * loop.size;
    loop.at = 0;
  }
  return true;
}

namespace {

/// A corner of a box as one number, ordered as its coordinates are.
using Corner = unsigned __int128;

struct SignedCorner {
  Corner at = 0;
  int64_t sign = 0;
};

/// Adds the corners of the box in the dimensions `dims`, those at an odd number of ends negative.
void add_corners(const Box& box, std::span<const size_t> dims, std::span<const int64_t> shape,
                 int64_t sign, std::vector<SignedCorner>& corners) {
  for (size_t ends = 0; ends < size_t{1} << dims.size(); ++ends) {
    SignedCorner corner{.at = 0, .sign = sign};
    for (size_t i = 0; i < dims.size(); ++i) {
      const size_t d = dims[i];
      const bool end = (ends >> i & 1) != 0;
      corner.at = corner.at * (static_cast<Corner>(shape[d]) + 1) +
                  static_cast<Corner>(box.offset[d] + (end ? box.size[d] : 0));
      if (end) corner.sign = -corner.sign;
    }
    corners.push_back(corner);
  }
}

bool contains(const Box& box, std::span<const int64_t> element) {
  for (size_t d = 0; d < element.size(); ++d) {
    if (element[d] < box.offset[d] || element[d] >= box.offset[d] + box.size[d]) return false;
  }
  return true;
}

} // namespace

// How often each element is covered is a sum of indicators of boxes. Differenced once in every
// dimension it is nonzero only at corners, with the signs of add_corners(), and summing gives it
// back; so the boxes tile the tensor if and only if their corners cancel to those of the whole. At
// the first corner in row-major order that is left over nothing but it contributes to the sum: what
// is left is by how much that element is covered too often or too rarely.
std::optional<TilingFault> find_tiling_fault(std::span<const int64_t> shape,
                                             std::span<const Box* const> boxes) {
  std::vector<size_t> cut; // dimensions in which some box is not whole
  for (size_t d = 0; d < shape.size(); ++d) {
    if (std::ranges::any_of(boxes, [&](const Box* box) {
          return d < box->size.size() && box->size[d] != shape[d];
        }))
      cut.push_back(d);
  }
  for (size_t i = 0; i < boxes.size(); ++i) {
    if (!fits(*boxes[i], shape)) return TilingFault{.element = {}, .times = 0, .boxes = {i}};
  }
  if (numel(shape) == 0) return std::nullopt;
  if (shape.size() > kMaxDims || boxes.size() > (size_t{1} << 28 >> cut.size()))
    raise<CheckpointError>("{} boxes of a tensor of {} dimensions are too many", boxes.size(),
                           shape.size());
  std::vector<SignedCorner> corners;
  corners.reserve((boxes.size() + 1) << cut.size());
  for (const Box* box : boxes) add_corners(*box, cut, shape, 1, corners);
  add_corners(whole_box(shape), cut, shape, -1, corners);
  std::ranges::sort(corners, {}, &SignedCorner::at);
  for (size_t i = 0; i < corners.size();) {
    Corner at = corners[i].at;
    int64_t left = 0;
    for (; i < corners.size() && corners[i].at == at; ++i) left += corners[i].sign;
    if (left == 0) continue;
    TilingFault fault{
        .element = std::vector<int64_t>(shape.size()), .times = 1 + left, .boxes = {}};
    for (size_t k = cut.size(); k-- > 0;) {
      const auto base = static_cast<Corner>(shape[cut[k]]) + 1;
      fault.element[cut[k]] = static_cast<int64_t>(at % base);
      at /= base;
    }
    for (size_t b = 0; b < boxes.size() && fault.boxes.size() < 2; ++b) {
      if (contains(*boxes[b], fault.element)) fault.boxes.push_back(b);
    }
    return fault;
  }
  return std::nullopt;
}

} // namespace pentatron::checkpoint
