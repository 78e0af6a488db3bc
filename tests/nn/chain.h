/// Segments one behind the other, with one flow between them.
#pragma once

#include "pentatron/nn/segment.h"

#include <memory>
#include <utility>
#include <vector>

namespace pentatron::test {

/// `takes`: the first segment takes the flow; `gives`: the last gives it, else it has a loss.
inline nn::Chunk chain(std::vector<std::unique_ptr<nn::Segment>> segments, nn::ChunkOptions options,
                       bool takes, bool gives) {
  std::vector<nn::ConnectedSegment> connected;
  for (std::unique_ptr<nn::Segment>& segment : segments) {
    const bool first = &segment == &segments.front(), last = &segment == &segments.back();
    nn::Ports ports;
    if (!first || takes) ports.takes = {0};
    if (!last || gives) ports.gives = {0};
    if (last && !gives) ports.ends = {0};
    connected.push_back({std::move(segment), std::move(ports)});
  }
  return nn::Chunk(std::move(connected), 1, options);
}

} // namespace pentatron::test
