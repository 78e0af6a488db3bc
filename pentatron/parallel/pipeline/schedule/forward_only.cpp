#include "pentatron/parallel/pipeline/schedule/forward_only.h"

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

} // namespace pentatron::pipeline
