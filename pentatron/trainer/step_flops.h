/// The work of a step, for MFU.
#pragma once

#include <vector>

#include "pentatron/nn/cost.h"
#include "pentatron/trainer/config.h"

namespace pentatron::trainer {

/// Of one optimizer step over all ranks: matrix products forward and backward, and of attention the
/// causal half of every document's square (nn/cost.h). `hardware` counts recomputation too. 0 of a
/// step that was skipped for want of targets.
struct StepFlops {
  double model = 0;
  double hardware = 0;
};

/// Of the samples of all ranks; `shapes` has one for each of the model's streams.
StepFlops step_flops(const Config& config, const std::vector<nn::LayerShape>& shapes);

} // namespace pentatron::trainer
