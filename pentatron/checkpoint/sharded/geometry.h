/// Boxes of a tensor: cutting, intersecting, copying, and whether they tile it.
///
/// A box is `size` elements from `offset` on in each dimension. A tensor of no dimension is one
/// element, its only box has empty lists. Everything is row-major and counted in elements.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace pentatron::checkpoint {

inline constexpr size_t kMaxDims = 8;

struct Box {
  std::vector<int64_t> offset, size;
  bool operator==(const Box&) const = default;
};

/// Product of the extents; none if it is negative, or 2^60 or more with zeros left out.
std::optional<int64_t> checked_numel(std::span<const int64_t> shape);
/// Product of the extents of a shape that has been checked.
int64_t numel(std::span<const int64_t> shape);
inline int64_t numel(const Box& box) {
  return numel(box.size);
}

Box whole_box(std::span<const int64_t> shape);
/// Whether the box has as many dimensions as the tensor and lies in it.
bool fits(const Box& box, std::span<const int64_t> shape);
/// None where they have no element in common.
std::optional<Box> intersect(const Box& a, const Box& b);
/// "[0:4, 8:16]"
std::string to_text(const Box& box);
/// Strides of a row-major tensor, in elements.
std::vector<int64_t> row_major_strides(std::span<const int64_t> shape);

/// Elements [begin, begin + count) of a row-major tensor as at most 2 dims - 1 boxes, in order: the
/// range is the contents of the boxes, one after the other.
std::vector<Box> flat_range_boxes(std::span<const int64_t> shape, int64_t begin, int64_t count);

/// `count` neighbouring elements, `source` and `target` from the first elements of two boxes.
struct CopyRun {
  int64_t source = 0, target = 0, count = 0;
};

/// The longest runs of `part`, in row-major order. `part` lies in both boxes; the data of `source`
/// is row-major, that of `target` has the given strides.
class Runs {
 public:
  Runs(const Box& part, const Box& source, const Box& target);
  Runs(const Box& part, const Box& source, const Box& target,
       std::span<const int64_t> target_strides);
  /// False after the last one.
  bool next(CopyRun& run);

 private:
  struct Loop {
    int64_t size = 1, source = 0, target = 0, at = 0;
  };
  std::vector<Loop> loops_; ///< outermost first
  CopyRun run_;
  bool done_ = false;
};

/// Why boxes do not tile a tensor.
struct TilingFault {
  std::vector<int64_t> element; ///< the first such element; empty where a box does not fit
  int64_t times = 0;            ///< how often it is covered: 0, or 2 and more
  std::vector<size_t> boxes;    ///< two that cover it, or the one that does not fit
};

/// None if the boxes cover every element exactly once. Time n log n in the number of boxes n.
std::optional<TilingFault> find_tiling_fault(std::span<const int64_t> shape,
                                             std::span<const Box* const> boxes);

} // namespace pentatron::checkpoint
