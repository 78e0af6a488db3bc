#include "pentatron/parallel/pipeline/schedule/generators.h"

namespace pentatron::pipeline {

void gpipe(Schedule& schedule) {
  const int m = schedule.num_microbatches;
  for (int r = 0; r < schedule.num_ranks; ++r) {
    std::vector<Action>& steps = schedule.actions[r];
    for (int i = 0; i < m; ++i) steps.push_back(forward(r, i));
    for (int i = 0; i < m; ++i) steps.push_back(backward(r, i));
  }
}

} // namespace pentatron::pipeline
