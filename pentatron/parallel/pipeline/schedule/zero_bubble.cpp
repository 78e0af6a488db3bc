#include "pentatron/parallel/pipeline/schedule/zero_bubble.h"

#include <algorithm>

namespace pentatron::pipeline {

void zero_bubble(Schedule& schedule, int rank, int ahead, int lag) {
  std::vector<Action>& steps = schedule.actions[rank];
  const int m = schedule.num_microbatches;
  for (int i = 0; i < std::min(ahead, m); ++i) steps.push_back(forward(rank, i));
  for (int i = 0; i < m; ++i) {
    steps.push_back(backward_input(rank, i));
    if (i >= lag) steps.push_back(backward_weight(rank, i - lag));
    if (i + ahead < m) steps.push_back(forward(rank, i + ahead));
  }
  for (int i = std::max(m - lag, 0); i < m; ++i) steps.push_back(backward_weight(rank, i));
}

} // namespace pentatron::pipeline
