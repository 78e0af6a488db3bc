/// What the ranks of a pipeline did when, as one timeline: the counterpart of simulate().
#pragma once

#include <string>
#include <vector>

#include "pentatron/comm/group.h"
#include "pentatron/parallel/pipeline/schedule/simulate.h"

namespace pentatron::pipeline {

/// One row for each rank, from what the runtime wrote on it (RunOptions::intervals); the clocks of
/// all ranks must agree. Collectives: two all-gathers.
Timeline gather_timeline(const std::string& name, const std::vector<Interval>& intervals,
                         const comm::Group& pipeline);

} // namespace pentatron::pipeline
