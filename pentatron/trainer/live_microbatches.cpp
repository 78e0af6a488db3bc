#include "pentatron/trainer/live_microbatches.h"

#include <algorithm>
#include <cmath>

#include "pentatron/parallel/pipeline/schedule/schedule.h"

namespace pentatron::trainer {

static std::vector<Moment> moments_of(const pipeline::Schedule& schedule, int rank) {
  const std::vector<int> stages = schedule.stages_of(rank);
  Moment now(stages.size());
  std::vector<Moment> all;
  for (const pipeline::Action& action : schedule.actions[static_cast<size_t>(rank)])
    for (const pipeline::Pass& pass : pipeline::Passes(action)) {
      using enum pipeline::ActionKind;
      Live& live = now[static_cast<size_t>(std::ranges::find(stages, pass.stage) - stages.begin())];
      if (pass.kind == kForward)
        live.ahead += 1;
      else if (pass.kind == kBackwardWeight)
        live.deferred -= 1;
      else
        live.ahead -= 1;
      if (pass.kind == kBackwardInput) live.deferred += 1;
      if (pass.kind == kForward || pass.kind == kBackwardInput) all.push_back(now);
    }
  return all;
}

std::vector<std::vector<Moment>> moments_of(const parallelize::PipelinePlan& plan,
                                            double microbatches) {
  const auto enough = static_cast<double>(4 * plan.rank_of_stage.size());
  const double some = std::floor(std::clamp(microbatches, 1.0, enough));
  const pipeline::Schedule schedule = plan.make(static_cast<int>(some));
  std::vector<std::vector<Moment>> all;
  for (int rank = 0; rank < schedule.num_ranks; ++rank) all.push_back(moments_of(schedule, rank));
  if (plan.schedule == "gpipe")
    for (std::vector<Moment>& rank : all)
      for (Moment& moment : rank)
        for (Live& live : moment) live.ahead *= std::max(1.0, microbatches / some);
  return all;
}

} // namespace pentatron::trainer
