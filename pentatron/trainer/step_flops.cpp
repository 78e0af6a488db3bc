#include "pentatron/trainer/step_flops.h"

#include <algorithm>
#include <map>

#include "pentatron/trainer/recompute.h"

namespace pentatron::trainer {

namespace {

std::vector<nn::LayerShape> shapes_of(const std::vector<data::StreamTotals>& totals,
                                      int64_t samples, int64_t data::StreamTotals::*tokens) {
  std::vector<nn::LayerShape> shapes;
  for (const data::StreamTotals& stream : totals) {
    nn::LayerShape& shape = shapes.emplace_back();
    shape.tokens = stream.*tokens;
    shape.squared_lengths = stream.squared_lengths;
    if (shapes.size() == 1) continue;
    shape.memory_tokens = shapes[0].tokens;
    shape.crossed_lengths = stream.real_tokens * totals[0].real_tokens / samples;
  }
  return shapes;
}

} // namespace

StepFlops step_flops(const Config& config, const models::Model& of, int64_t stages, int64_t samples,
                     const std::vector<data::StreamTotals>& totals) {
  const models::ModelSpec& spec = of.spec();
  const std::vector<nn::LayerShape> real = shapes_of(totals, samples,
                                                     &data::StreamTotals::real_tokens),
                                    computed =
                                        shapes_of(totals, samples, &data::StreamTotals::tokens);
  struct Costs {
    nn::Cost model, hardware;
  };
  std::map<int, Costs> kinds;
  const nn::Recomputation again = recomputation(config.train);
  const auto layers =
      static_cast<double>(std::ranges::count_if(spec.segments, &models::SegmentSpec::recomputed));
  const double share = !again.layers ? 0
                       : again.count == 0
                           ? 1
                           : std::min(1.0, static_cast<double>(again.count * stages) / layers);
  StepFlops flops;
  for (int64_t i = 0; i < spec.num_segments(); ++i) {
    const models::SegmentSpec& segment = spec.segments[static_cast<size_t>(i)];
    if (!kinds.contains(segment.kind))
      kinds[segment.kind] = {models::segment_cost(config.model, real, i),
                             models::segment_cost(config.model, computed, i)};
    const auto& [model, hardware] = kinds[segment.kind];
    if (!of.has_backward(i)) {
      flops.model += model.forward_flops();
      flops.hardware += hardware.forward_flops();
      continue;
    }
    flops.model += model.total_flops();
    flops.hardware += hardware.total_flops();
    if (config.peft.on()) { // frozen weights have no gradients; adapters are not counted
      flops.model -= model.forward_gemm_flops;
      flops.hardware -= hardware.forward_gemm_flops;
    }
    flops.hardware += hardware.recomputed_flops(again.parts);
    if (segment.recomputed) flops.hardware += share * hardware.forward_flops();
  }
  return flops;
}

} // namespace pentatron::trainer
