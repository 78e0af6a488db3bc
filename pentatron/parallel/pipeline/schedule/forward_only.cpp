#include "pentatron/parallel/pipeline/schedule/forward_only.h"

#include <algorithm>
#include <utility>

namespace pentatron::pipeline {

Schedule forward_only(const Schedule& schedule) {
  Schedule out = schedule;
  for (std::vector<Action>& steps : out.actions) {
    std::vector<Action> kept;
    for (const Action& step : steps) {
      for (const Pass& pass : Passes(step)) {
        if (pass.kind == ActionKind::kForward) kept.push_back(forward(pass.stage, pass.microbatch));
      }
    }
    steps = std::move(kept);
  }
  return out;
}

Schedule one_pass(std::vector<int> rank_of_stage) {
  Schedule out{.name = "one pass",
               .num_ranks = *std::ranges::max_element(rank_of_stage) + 1,
               .num_stages = static_cast<int>(rank_of_stage.size()),
               .num_microbatches = 1,
               .lowered = false,
               .rank_of_stage = std::move(rank_of_stage),
               .actions = {}};
  out.actions.resize(static_cast<size_t>(out.num_ranks));
  for (int stage = 0; stage < out.num_stages; ++stage) {
    const int rank = out.rank_of_stage[static_cast<size_t>(stage)];
    out.actions[static_cast<size_t>(rank)].push_back(forward(stage, 0));
  }
  return out;
}

} // namespace pentatron::pipeline
