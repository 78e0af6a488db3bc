#include "pentatron/trainer/step_flops.h"

#include <map>

#include "pentatron/models/model.h"

namespace pentatron::trainer {

StepFlops step_flops(const Config& config, const std::vector<nn::LayerShape>& shapes) {
  const models::ModelSpec spec = models::model_spec(config.model);
  StepFlops flops;
  std::map<int, nn::Cost> kinds;
  for (int64_t i = 0; i < spec.num_segments(); ++i) {
    const models::SegmentSpec& segment = spec.segments[static_cast<size_t>(i)];
    if (!kinds.contains(segment.kind))
      kinds[segment.kind] = models::segment_cost(config.model, shapes, i);
    const nn::Cost& cost = kinds[segment.kind];
    flops.model += cost.total_flops();
    flops.hardware += cost.total_flops();
    if (config.train.recompute == Recompute::kFull && segment.is_layer)
      flops.hardware += cost.forward_flops();
  }
  return flops;
}

} // namespace pentatron::trainer
