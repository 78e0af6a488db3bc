#include "pentatron/checkpoint/placement.h"

#include <algorithm>

namespace pentatron::checkpoint {

std::vector<PlacedBox> placed_boxes(const nn::ShardSpec& spec, const nn::Coordinates& where,
                                    const nn::FlatRange& range) {
  const std::vector<int64_t> shape = nn::local_shape(spec, where);
  const std::vector<int64_t> strides = row_major_strides(shape);
  const std::vector<nn::LocalBox> held = nn::local_boxes(spec, where);
  std::vector<PlacedBox> placed;
  for (const Box& local : flat_range_boxes(shape, range.begin, range.size)) {
    for (const nn::LocalBox& one : held) {
      std::optional<Box> part = intersect(local, Box{one.local, one.size});
      if (!part) continue;
      int64_t begin = -range.begin;
      for (size_t d = 0; d < shape.size(); ++d) {
        begin += part->offset[d] * strides[d];
        part->offset[d] += one.global[d] - one.local[d];
      }
      placed.push_back({*std::move(part), begin, strides});
    }
  }
  return placed;
}

std::vector<nn::FlatRange> intersect(const nn::FlatRange& range,
                                     const std::vector<nn::FlatRange>& ranges) {
  std::vector<nn::FlatRange> parts;
  for (const nn::FlatRange& other : ranges) {
    const int64_t begin = std::max(range.begin, other.begin);
    const int64_t end = std::min(range.begin + range.size, other.begin + other.size);
    if (begin < end) parts.push_back({begin, end - begin});
  }
  return parts;
}

} // namespace pentatron::checkpoint
