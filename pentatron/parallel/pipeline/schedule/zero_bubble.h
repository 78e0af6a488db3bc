/// The shape that ZB-H1 and ZB-H2 share.
#pragma once

#include "pentatron/parallel/pipeline/schedule/schedule.h"

namespace pentatron::pipeline {

/// Appends rank `rank`'s steps: `ahead` forwards, then for every microbatch its input gradient, the
/// weight gradient of the microbatch `lag` before it, and the next forward; at last the remaining
/// weight gradients. At most ahead + lag microbatches are kept.
void zero_bubble(Schedule& schedule, int rank, int ahead, int lag);

} // namespace pentatron::pipeline
