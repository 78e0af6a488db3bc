/// What a whole model costs.
#pragma once

#include <vector>

#include "pentatron/models/model.h"

namespace pentatron::test {

/// Of all segments, for one microbatch on this rank; `shapes` has one for each stream.
inline nn::Cost model_cost(const models::ModelConfig& config,
                           const std::vector<nn::LayerShape>& shapes) {
  nn::Cost total;
  for (int64_t segment = 0; segment < models::model_spec(config).num_segments(); ++segment)
    total += models::segment_cost(config, shapes, segment);
  return total;
}

} // namespace pentatron::test
