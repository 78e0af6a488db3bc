#include <algorithm>

#include "pentatron/parallel/pipeline/schedule/generators.h"

namespace pentatron::pipeline {

void one_f_one_b(Schedule& schedule) {
  const int p = schedule.num_ranks;
  const int m = schedule.num_microbatches;
  for (int r = 0; r < p; ++r) {
    std::vector<Action>& steps = schedule.actions[r];
    const int ahead = std::min(p - r, m); // forwards before the first backward
    for (int i = 0; i < ahead; ++i) steps.push_back(forward(r, i));
    for (int i = 0; i < m; ++i) {
      steps.push_back(backward(r, i));
      if (i + ahead < m) steps.push_back(forward(r, i + ahead));
    }
  }
}

} // namespace pentatron::pipeline
