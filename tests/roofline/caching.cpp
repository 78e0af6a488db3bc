#include "tests/roofline/caching.h"

#include <algorithm>
#include <iterator>

#include "pentatron/base/error.h"

namespace pentatron::roofline {

namespace {

constexpr size_t kMiB = size_t{1} << 20, kUnit = 512, kSmall = kMiB, kSmallSegment = 2 * kMiB,
                 kMiddle = 10 * kMiB, kMiddleSegment = 20 * kMiB;

size_t rounded(size_t bytes, size_t unit) {
  return (std::max<size_t>(bytes, 1) + unit - 1) / unit * unit;
}

size_t segment_for(size_t bytes) {
  if (bytes <= kSmall) return kSmallSegment;
  return bytes < kMiddle ? kMiddleSegment : rounded(bytes, 2 * kMiB);
}

} // namespace

bool CachingModel::is_small(size_t segment) {
  return segment == kSmallSegment;
}

CachingModel::Place CachingModel::new_segment(size_t bytes) {
  ++taken_;
  const Place place = next_;
  next_ += bytes;
  blocks_[place] = {.bytes = bytes, .segment = bytes, .first = true, .last = true};
  return place;
}

void CachingModel::allocate(uintptr_t id, size_t bytes) {
  const size_t size = rounded(bytes, kUnit);
  Free& free = free_[size <= kSmall ? 0 : 1];
  Place place = 0;
  if (const auto best = free.lower_bound({size, 0}); best != free.end()) {
    place = best->second;
    free.erase(best);
  } else {
    place = new_segment(segment_for(size));
  }
  Block& block = blocks_.at(place);
  const size_t left = block.bytes - size;
  if (left >= (size <= kSmall ? kUnit : kSmall + 1)) {
    blocks_[place + size] = {
        .bytes = left, .segment = block.segment, .first = false, .last = block.last};
    block.bytes = size;
    block.last = false;
    free.insert({left, place + size});
  }
  PT_DCHECK(alive_.emplace(id, place).second);
}

void CachingModel::release(uintptr_t id) {
  const auto found = alive_.find(id);
  PT_DCHECK(found != alive_.end());
  auto block = blocks_.find(found->second);
  alive_.erase(found);
  Free& free = free_of(block->second);
  const auto join_next = [&](auto one) {
    const auto next = std::next(one);
    one->second.bytes += next->second.bytes;
    one->second.last = next->second.last;
    blocks_.erase(next);
  };
  if (!block->second.last) {
    const auto next = std::next(block);
    if (free.erase({next->second.bytes, next->first}) > 0) join_next(block);
  }
  if (!block->second.first) {
    const auto before = std::prev(block);
    if (free.erase({before->second.bytes, before->first}) > 0) {
      join_next(before);
      block = before;
    }
  }
  free.insert({block->second.bytes, block->first});
}

void CachingModel::empty_cache() {
  for (Free& free : free_)
    std::erase_if(free, [&](const auto& one) {
      const Block& block = blocks_.at(one.second);
      const bool whole = block.first && block.last;
      if (whole) blocks_.erase(one.second);
      return whole;
    });
}

} // namespace pentatron::roofline
