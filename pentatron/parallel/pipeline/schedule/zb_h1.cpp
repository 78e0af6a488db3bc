#include "pentatron/parallel/pipeline/schedule/generators.h"
#include "pentatron/parallel/pipeline/schedule/zero_bubble.h"

namespace pentatron::pipeline {

void zb_h1(Schedule& schedule) {
  const int p = schedule.num_ranks;
  for (int r = 0; r < p; ++r) zero_bubble(schedule, r, p - r, r);
}

} // namespace pentatron::pipeline
