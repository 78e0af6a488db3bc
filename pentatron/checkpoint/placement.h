/// Positions of the elements of a rank's tensors in the global tensors, as boxes.
#pragma once

#include <vector>

#include "pentatron/checkpoint/sharded/geometry.h"
#include "pentatron/nn/shard_spec.h"

namespace pentatron::checkpoint {

/// A box of the true tensor whose elements a rank holds in a flat range of its own tensor.
struct PlacedBox {
  Box box;
  int64_t begin = 0;            ///< of its first element, from the first of the range
  std::vector<int64_t> strides; ///< of the rank's tensor
};

/// What elements [range.begin, range.begin + range.size) of the rank's tensor, flattened, are.
/// Padding is in no box.
std::vector<PlacedBox> placed_boxes(const nn::ShardSpec& spec, const nn::Coordinates& where,
                                    const nn::FlatRange& range);

/// The parts of `range` that lie in `ranges`, which ascend.
std::vector<nn::FlatRange> intersect(const nn::FlatRange& range,
                                     const std::vector<nn::FlatRange>& ranges);

} // namespace pentatron::checkpoint
