/// How many microbatches' activations each stage of a pipeline rank keeps, at each time of a step.
#pragma once

#include <vector>

#include "pentatron/parallelize/parallelize.h"

namespace pentatron::trainer {

/// Microbatches of one stage whose activations are kept.
struct Live {
  double ahead = 0;    ///< F has run, no backward pass has
  double deferred = 0; ///< the weight gradients' pass has not run
};
/// By stage of a rank, as PipelinePlan::stages_of() has them, behind a pass that has added to them.
using Moment = std::vector<Live>;

/// Of each pipeline rank. But for gpipe, which keeps all, many microbatches are as many as the
/// pipeline holds.
std::vector<std::vector<Moment>> moments_of(const parallelize::PipelinePlan& plan,
                                            double microbatches);

} // namespace pentatron::trainer
