/// The forward half of a schedule: evaluation.
#pragma once

#include "pentatron/parallel/pipeline/schedule/schedule.h"

namespace pentatron::pipeline {

/// Every F of a schedule as generated, in the same order on every rank, and nothing else; lower()
/// takes it, and check() with Purpose::kEvaluation.
Schedule forward_only(const Schedule& schedule);

} // namespace pentatron::pipeline
