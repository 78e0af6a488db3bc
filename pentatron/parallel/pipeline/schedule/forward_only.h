/// Schedules without backward passes: evaluation and generation.
#pragma once

#include "pentatron/parallel/pipeline/schedule/schedule.h"

namespace pentatron::pipeline {

/// Every F of a schedule as generated, in the same order on every rank, and nothing else; lower()
/// takes it, and check() with Purpose::kEvaluation.
Schedule forward_only(const Schedule& schedule);

/// One microbatch through all stages.
Schedule one_pass(std::vector<int> rank_of_stage);

} // namespace pentatron::pipeline
