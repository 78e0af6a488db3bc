#include <algorithm>

#include "pentatron/parallel/pipeline/schedule/generators.h"
#include "pentatron/parallel/pipeline/schedule/v_shape.h"

namespace pentatron::pipeline {
namespace {

/// Fills the pipeline: forwards down the V, then down and up.
void fill(VShapeWriter& write, int p, int r) {
  for (int i = 0; i < 2 * (p - r - 1); ++i) write.forward(0);
  for (int i = 0; i < r + 1; ++i) {
    write.forward(0);
    write.forward(1);
  }
  for (int i = 0; i < p - r - 1; ++i) {
    write.backward_input(1);
    write.backward_weight();
    write.forward(1);
  }
}

/// Overlapped pairs, while there are forwards of leg 0 left and then of leg 1.
void steady(VShapeWriter& write, int p, int m, int r) {
  for (int i = 0; i < m - 2 * p + r + 1; ++i) {
    // The turn of the V: there the pair's backward waits for the forward just before it, so
    // starting the two halves apart lets the gradient leave earlier.
    if (i == 0 && r == p - 1) {
      write.forward(0);
      write.backward(1);
    } else {
      write.overlap(0);
    }
    write.overlap(1);
  }
  for (int i = 0; i < p - r - 1; ++i) {
    write.backward(1);
    write.overlap(1);
  }
}

/// Empties it: whole backwards first, then halves, whose weight gradients fill the last gaps.
void drain(VShapeWriter& write, int p, int r) {
  const int whole = r + 1; // of the 2(r+1) backwards
  int done = 0;
  const auto next = [&](int leg) {
    if (done++ < whole) {
      write.backward(leg);
    } else {
      write.backward_input(leg);
    }
  };
  for (int i = 0; i < r + 1; ++i) {
    next(1);
    next(0);
  }
  for (int i = 0; i < p - r - 1; ++i) {
    write.backward_weight();
    write.backward_input(0);
  }
  while (write.num_deferred() > 0) write.backward_weight();
}

} // namespace

void dualpipe_v(Schedule& schedule) {
  const int p = schedule.num_ranks;
  const int wanted = schedule.num_microbatches;
  const int m = std::max(wanted, 2 * p); // the pattern needs 2p
  for (int r = 0; r < p; ++r) {
    VShapeWriter write(schedule, r);
    fill(write, p, r);
    steady(write, p, m, r);
    drain(write, p, r);
  }
  keep_microbatches(schedule, wanted);
}

} // namespace pentatron::pipeline
