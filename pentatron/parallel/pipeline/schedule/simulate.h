/// When everything happens: the timeline of a schedule under given costs.
#pragma once

#include <string>
#include <vector>

#include "pentatron/parallel/pipeline/schedule/schedule.h"

namespace pentatron::pipeline {

/// Units: any, the same for all; the timeline has it too.
struct StageCost {
  double forward = 1;
  double backward_input = 1;
  double backward_weight = 1; ///< B takes backward_input + backward_weight
};

struct Costs {
  std::vector<StageCost> stages; ///< one for all stages, or one a stage
  double latency = 0;            ///< from the end of a pass to its result on another rank
  double overlap = 1;            ///< an overlapped pair takes overlap * (F + B)
};

/// An action with its times, simulated or measured.
struct Interval {
  Action action;
  double start = 0;
  double end = 0;
};

struct Timeline {
  std::string name;
  std::vector<std::vector<Interval>> rows; ///< by rank, in order of start
};

/// Runs the computing actions of `schedule`, each as soon as its rank is free and its inputs are
/// there; what lower() inserts takes no time. Lowered or not gives the same timeline.
/// Throws ConfigError if the schedule does not run (see check.h), or costs are negative or of a
/// wrong number.
Timeline simulate(const Schedule& schedule, const Costs& costs);

/// From the first start of all rows to the last end of all.
double makespan(const Timeline& timeline);

/// What one row does with its time.
struct RowUse {
  double busy = 0;       ///< sum of the computing intervals
  double window = 0;     ///< from the row's first start to its last end
  double idle_share = 0; ///< 1 - busy / makespan of all
};
std::vector<RowUse> row_use(const Timeline& timeline);

/// The time that the zero-bubble papers call bubble: the longest row's window less its busy time.
/// It is below makespan less busy time, because a row that starts later may end later.
double bubble(const Timeline& timeline);

} // namespace pentatron::pipeline
