// Cutting, copying and tiling against plain loops over elements.
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <numeric>
#include <random>

#include "pentatron/checkpoint/sharded/geometry.h"
#include "tests/checkpoint/sharded/copy_box.h"

namespace pentatron::checkpoint {
namespace {

using Shape = std::vector<int64_t>;

/// Calls f(coordinates) for every element of the box, in row-major order.
template <class F> void for_each_element(const Box& box, F&& f) {
  if (numel(box) == 0) return;
  Shape at = box.offset;
  while (true) {
    f(at);
    size_t d = at.size();
    while (d > 0 && ++at[d - 1] == box.offset[d - 1] + box.size[d - 1]) {
      at[d - 1] = box.offset[d - 1];
      --d;
    }
    if (d == 0) return;
  }
}

int64_t index_in(const Box& box, const Shape& at) {
  int64_t index = 0;
  for (size_t d = 0; d < at.size(); ++d) index = index * box.size[d] + at[d] - box.offset[d];
  return index;
}

class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}
  int64_t below(int64_t n) { return static_cast<int64_t>(engine_() % static_cast<uint64_t>(n)); }
  Shape shape(size_t max_dims, int64_t max_extent) {
    Shape shape(static_cast<size_t>(below(static_cast<int64_t>(max_dims) + 1)));
    for (int64_t& extent : shape) extent = 1 + below(max_extent);
    return shape;
  }
  /// A box of at least one element.
  Box box(const Shape& shape) {
    Box box;
    for (const int64_t extent : shape) {
      box.offset.push_back(below(extent));
      box.size.push_back(1 + below(extent - box.offset.back()));
    }
    return box;
  }
  /// Cuts the tensor into boxes by splitting one of them again and again.
  std::vector<Box> tiling(const Shape& shape, int cuts) {
    std::vector<Box> boxes = {whole_box(shape)};
    for (int i = 0; i < cuts && !shape.empty(); ++i) {
      Box& box = boxes[static_cast<size_t>(below(static_cast<int64_t>(boxes.size())))];
      const auto d = static_cast<size_t>(below(static_cast<int64_t>(shape.size())));
      if (box.size[d] < 2) continue;
      Box rest = box;
      box.size[d] = 1 + below(box.size[d] - 1);
      rest.offset[d] += box.size[d];
      rest.size[d] -= box.size[d];
      boxes.push_back(rest);
    }
    std::shuffle(boxes.begin(), boxes.end(), engine_);
    return boxes;
  }

 private:
  std::mt19937_64 engine_;
};

std::vector<const Box*> pointers(const std::vector<Box>& boxes) {
  std::vector<const Box*> out;
  for (const Box& box : boxes) out.push_back(&box);
  return out;
}

TEST(Geometry, IntersectionHoldsExactlyTheCommonElements) {
  Random random(1);
  for (int i = 0; i < 500; ++i) {
    const Shape shape = random.shape(4, 5);
    const Box a = random.box(shape);
    const Box b = random.box(shape);
    int64_t common = 0;
    for_each_element(a, [&](const Shape& at) {
      bool inside = true;
      for (size_t d = 0; d < at.size(); ++d)
        inside = inside && at[d] >= b.offset[d] && at[d] < b.offset[d] + b.size[d];
      common += inside ? 1 : 0;
    });
    const auto both = intersect(a, b);
    ASSERT_EQ(both ? numel(*both) : 0, common);
    if (both) {
      ASSERT_TRUE(fits(*both, shape));
    }
  }
}

TEST(Geometry, CopyMovesEveryElementOfThePartAndNoOther) {
  Random random(2);
  for (int i = 0; i < 1000; ++i) {
    const Shape shape = random.shape(4, 6);
    const Box source = random.box(shape);
    const Box target = random.box(shape);
    const auto part = intersect(source, target);
    if (!part) continue;
    std::vector<int32_t> from(static_cast<size_t>(numel(source)));
    std::iota(from.begin(), from.end(), 1);
    std::vector<int32_t> to(static_cast<size_t>(numel(target)));
    std::vector<int32_t> expected = to;
    for_each_element(*part, [&](const Shape& at) {
      expected[static_cast<size_t>(index_in(target, at))] =
          from[static_cast<size_t>(index_in(source, at))];
    });
    test::copy_box(*part, source, std::as_bytes(std::span(from)), target,
                   std::as_writable_bytes(std::span(to)), sizeof(int32_t));
    ASSERT_EQ(to, expected);
  }
}

TEST(Geometry, RunsAreAsLongAsTheyCanBe) {
  const Box whole = whole_box(Shape{4, 6, 8});
  const auto count_runs = [&](const Box& part, const Box& target) {
    Runs runs(part, whole, target);
    int count = 0;
    for (CopyRun run; runs.next(run);) ++count;
    return count;
  };
  EXPECT_EQ(count_runs(whole, whole), 1);
  const Box rows{.offset = {1, 0, 0}, .size = {2, 6, 8}};
  EXPECT_EQ(count_runs(rows, rows), 1);
  const Box middle{.offset = {0, 2, 0}, .size = {4, 3, 8}};
  EXPECT_EQ(count_runs(middle, middle), 4);
  const Box columns{.offset = {0, 0, 4}, .size = {4, 6, 4}};
  EXPECT_EQ(count_runs(columns, columns), 24);
}

TEST(Geometry, RunsFollowStridesOfTheTarget) {
  const Box box{.offset = {1, 2}, .size = {3, 2}};
  const Shape strides = {1, 5}; // transposed and padded
  Runs runs(box, whole_box(Shape{4, 4}), box, strides);
  std::map<int64_t, int64_t> moved;
  for (CopyRun run; runs.next(run);) {
    for (int64_t k = 0; k < run.count; ++k) moved[run.target + k] = run.source + k;
  }
  EXPECT_EQ(moved,
            (std::map<int64_t, int64_t>{{0, 6}, {5, 7}, {1, 10}, {6, 11}, {2, 14}, {7, 15}}));
}

TEST(Geometry, FlatRangesAreFewBoxesInOrder) {
  Random random(3);
  for (int i = 0; i < 2000; ++i) {
    const Shape shape = random.shape(4, 5);
    const int64_t n = numel(shape);
    const int64_t begin = random.below(n + 1);
    const int64_t count = random.below(n - begin + 1);
    const std::vector<Box> boxes = flat_range_boxes(shape, begin, count);
    const size_t most = shape.empty() ? 1 : 2 * shape.size() - 1;
    ASSERT_LE(boxes.size(), most);
    int64_t next = begin;
    for (const Box& box : boxes) {
      ASSERT_GT(numel(box), 0);
      for_each_element(box, [&](const Shape& at) {
        ASSERT_EQ(index_in(whole_box(shape), at), next);
        ++next;
      });
    }
    ASSERT_EQ(next, begin + count);
  }
}

TEST(Geometry, TilingsOfAnyKindAreAccepted) {
  Random random(4);
  for (int i = 0; i < 300; ++i) {
    const Shape shape = random.shape(4, 7);
    const std::vector<Box> boxes = random.tiling(shape, 12);
    EXPECT_FALSE(find_tiling_fault(shape, pointers(boxes)));
  }
}

TEST(Geometry, EveryHoleAndOverlapIsFoundAtItsFirstElement) {
  Random random(5);
  int faults = 0;
  for (int i = 0; i < 3000; ++i) {
    const Shape shape = random.shape(3, 6);
    std::vector<Box> boxes = random.tiling(shape, 6);
    for (int64_t changes = random.below(3); changes-- > 0;) { // none, one or two
      const auto which = static_cast<size_t>(random.below(static_cast<int64_t>(boxes.size())));
      switch (random.below(3)) {
      case 0:
        boxes[which] = random.box(shape);
        break;
      case 1:
        boxes.push_back(random.box(shape));
        break;
      default:
        if (boxes.size() > 1) boxes.erase(boxes.begin() + static_cast<std::ptrdiff_t>(which));
      }
    }
    std::vector<int64_t> times(static_cast<size_t>(numel(shape)));
    const Box whole = whole_box(shape);
    for (const Box& box : boxes)
      for_each_element(box,
                       [&](const Shape& at) { ++times[static_cast<size_t>(index_in(whole, at))]; });
    const auto wrong = std::find_if(times.begin(), times.end(), [](int64_t n) { return n != 1; });
    const auto fault = find_tiling_fault(shape, pointers(boxes));
    ASSERT_EQ(fault.has_value(), wrong != times.end());
    if (!fault) continue;
    ++faults;
    ASSERT_EQ(index_in(whole, fault->element), wrong - times.begin());
    ASSERT_EQ(fault->times, *wrong);
    ASSERT_EQ(fault->boxes.size(), std::min<size_t>(2, static_cast<size_t>(*wrong)));
  }
  EXPECT_GT(faults, 500);
}

TEST(Geometry, ScalarsAndEmptyTensorsTile) {
  const std::vector<Box> scalar = {Box{}};
  EXPECT_FALSE(find_tiling_fault({}, pointers(scalar)));
  EXPECT_EQ(find_tiling_fault({}, {})->times, 0);
  const std::vector<Box> twice = {Box{}, Box{}};
  EXPECT_EQ(find_tiling_fault({}, pointers(twice))->times, 2);
  EXPECT_FALSE(find_tiling_fault(Shape{0, 3}, {}));
  const std::vector<Box> empty = {whole_box(Shape{0, 3})};
  EXPECT_FALSE(find_tiling_fault(Shape{0, 3}, pointers(empty)));
}

TEST(Geometry, BoxesOutsideAreNamed) {
  const std::vector<Box> boxes = {whole_box(Shape{4}), {.offset = {3}, .size = {2}}};
  EXPECT_EQ(find_tiling_fault(Shape{4}, pointers(boxes))->boxes, std::vector<size_t>{1});
}

TEST(Geometry, AHundredThousandBoxesAreNotQuadratic) {
  const Shape shape = {400, 300};
  std::vector<Box> boxes;
  for (int64_t r = 0; r < shape[0]; ++r) {
    for (int64_t c = 0; c < shape[1]; ++c) boxes.push_back({.offset = {r, c}, .size = {1, 1}});
  }
  EXPECT_FALSE(find_tiling_fault(shape, pointers(boxes))); // 120000^2 pairs would take minutes
  boxes[77777].offset[1] ^= 1;
  EXPECT_TRUE(find_tiling_fault(shape, pointers(boxes)));
}

TEST(Geometry, ImpossibleShapesHaveNoSize) {
  EXPECT_EQ(checked_numel(Shape{}), 1);
  EXPECT_EQ(checked_numel(Shape{3, 0}), 0);
  EXPECT_FALSE(checked_numel(Shape{-1}));
  EXPECT_FALSE(checked_numel(Shape{int64_t{1} << 32, int64_t{1} << 32}));
  EXPECT_FALSE(checked_numel(Shape{0, int64_t{1} << 32, int64_t{1} << 32}));
}

} // namespace
} // namespace pentatron::checkpoint
