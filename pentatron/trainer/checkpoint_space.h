/// The disk space that the checkpoints of a run need, told before its first step.
#pragma once

#include <string>

#include "pentatron/trainer/memory_plan.h"

namespace pentatron::trainer {

/// "checkpoints  about 1.2 GiB each, up to 3 at the same time: 3.6 GiB in runs/a, which has 80.0
/// GiB free"; empty: the run saves none.
std::string describe_checkpoints(const Config& config, const MemoryPlan& plan);

/// A warning if they need more than what is free; else empty. Checkpoints that are already in the
/// folder count as part of what is needed.
std::string checkpoint_space_warning(const Config& config, const MemoryPlan& plan);

} // namespace pentatron::trainer
