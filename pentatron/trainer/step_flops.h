/// The work of a step, for MFU.
#pragma once

#include <vector>

#include "pentatron/data/loader.h"
#include "pentatron/models/model.h"
#include "pentatron/trainer/config.h"

namespace pentatron::trainer {

/// Of one optimizer step over all ranks: matrix products forward and backward, and of attention the
/// causal half of every document's square (nn/cost.h). `model` counts the real tokens, `hardware`
/// recomputation and the products of padding too. Segments without a backward pass (frozen ones
/// with nothing to train before them) count forward. 0 of a step that was skipped for want of
/// targets.
struct StepFlops {
  double model = 0;
  double hardware = 0;
};

/// Of `samples` on all ranks, whose pipeline has `stages`; `totals` of each of the model's streams.
/// Cross-attention takes the samples' lengths as equal.
StepFlops step_flops(const Config& config, const models::Model& model, int64_t stages,
                     int64_t samples, const std::vector<data::StreamTotals>& totals);

} // namespace pentatron::trainer
