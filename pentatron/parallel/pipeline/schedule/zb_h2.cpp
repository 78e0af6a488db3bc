#include <algorithm>

#include "pentatron/parallel/pipeline/schedule/generators.h"
#include "pentatron/parallel/pipeline/schedule/zero_bubble.h"

namespace pentatron::pipeline {

/// ZB-H1 with p - 1 more microbatches in flight, spent on earlier forwards at the front ranks and
/// on later weight gradients at the back ones. A step of fewer microbatches has fewer to spend.
void zb_h2(Schedule& schedule) {
  const int p = schedule.num_ranks;
  const int more = std::clamp(schedule.num_microbatches - p, 0, p - 1);
  for (int r = 0; r < p; ++r) {
    zero_bubble(schedule, r, p - r + std::min(p - 1 - r, more), r + std::min(r, more));
  }
}

} // namespace pentatron::pipeline
