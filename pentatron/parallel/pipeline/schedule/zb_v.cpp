#include <algorithm>

#include "pentatron/parallel/pipeline/schedule/generators.h"
#include "pentatron/parallel/pipeline/schedule/v_shape.h"

namespace pentatron::pipeline {

/// The numbers of repetitions come from F = I = W = 1: the first microbatch reaches leg 1 of rank r
/// at 2p-1-r and comes back as a gradient at 2p+r; a full period is six steps.
void zb_v(Schedule& schedule) {
  const int p = schedule.num_ranks;
  const int wanted = schedule.num_microbatches;
  const int m = std::max(wanted, 2 * p); // the pattern needs 2p
  for (int r = 0; r < p; ++r) {
    VShapeWriter write(schedule, r);
    const int down = 2 * (p - r) - 1;
    for (int i = 0; i < down; ++i) write.forward(0);
    for (int i = 0; i < r; ++i) {
      write.forward(1);
      write.forward(0);
    }
    for (int i = 0; i < p - r; ++i) {
      write.forward(1);
      write.backward_input(1);
      write.backward_weight();
    }
    for (int i = down + r; i < m + p - r - 1; ++i) {
      if (i < m) write.forward(0);
      write.backward_input(0);
      write.backward_weight();
      write.forward(1);
      write.backward_input(1);
      write.backward_weight();
    }
    for (int i = 0; i < r; ++i) {
      write.backward_input(0);
      write.backward_input(1);
    }
    for (int i = 0; i < p - r; ++i) {
      write.backward_input(0);
      write.backward_weight();
    }
    while (write.num_deferred() > 0) write.backward_weight();
  }
  keep_microbatches(schedule, wanted);
}

} // namespace pentatron::pipeline
