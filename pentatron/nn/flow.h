/// The tensors that cross the boundaries between segments, and so between pipeline stages.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "pentatron/nn/context.h"

namespace pentatron::nn {

/// How many rows a flow has, so that a receiver knows its shape without a message.
enum class FlowRows : uint8_t {
  kTokens, ///< of its stream; under sequence parallel this rank's part of them
  kSamples ///< one for each sample
};

struct FlowSpec {
  std::string name;
  int stream = 0; ///< number of the stream whose rows it has
  FlowRows rows = FlowRows::kTokens;
  int64_t width = 0;          ///< columns
  bool differentiable = true; ///< of the model's type; else int64 without a gradient
  /// Not empty: passes that have no scale for this loss term do not have the flow.
  std::string term = {};

  int64_t num_rows(const Microbatch& batch) const {
    const SequenceLayout& layout = batch.layouts[static_cast<size_t>(stream)];
    return rows == FlowRows::kSamples ? layout.batch : layout.outer_tokens();
  }
};

/// The tensors that cross a boundary between segments, by the number of their flow: hidden states,
/// the output of an encoder. Undefined: not alive there. A model of one flow has one.
using Flows = std::vector<at::Tensor>;

/// Where a segment is connected.
struct Ports {
  std::vector<int> takes, gives; ///< numbers of flows
  std::vector<int> ends;         ///< flows that no later segment takes
  int stream = 0;                ///< whose layout the segment's operators see
};

} // namespace pentatron::nn
