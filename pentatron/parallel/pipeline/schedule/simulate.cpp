#include "pentatron/parallel/pipeline/schedule/simulate.h"

#include <algorithm>
#include <limits>
#include <optional>

#include "pentatron/base/error.h"
#include "pentatron/parallel/pipeline/schedule/check.h"

namespace pentatron::pipeline {
namespace {

constexpr double kNotYet = -1;

class Simulation {
 public:
  Simulation(const Schedule& schedule, const Costs& costs)
      : s_(schedule), costs_(costs), free_at_(schedule.num_ranks, 0.0),
        output_at_(num_cells(), kNotYet), gradient_at_(num_cells(), kNotYet) {}

  Timeline run() {
    Timeline timeline{.name = s_.name, .rows = {}};
    timeline.rows.resize(s_.num_ranks);
    std::vector<size_t> next(s_.num_ranks);
    for (bool moved = true; moved;) { // check() has shown that every rank comes to its end
      moved = false;
      for (int rank = 0; rank < s_.num_ranks; ++rank) {
        for (; next[rank] < s_.actions[rank].size(); ++next[rank]) {
          const Action& action = s_.actions[rank][next[rank]];
          if (!is_compute(action.kind)) continue;
          const std::optional<double> start = start_of(rank, action);
          if (!start) break;
          const double end = *start + duration(action);
          finish(action, end);
          free_at_[rank] = end;
          timeline.rows[rank].push_back({action, *start, end});
          moved = true;
        }
      }
    }
    return timeline;
  }

 private:
  size_t num_cells() const { return static_cast<size_t>(s_.num_stages) * s_.num_microbatches; }
  size_t cell(int stage, int microbatch) const {
    return static_cast<size_t>(stage) * s_.num_microbatches + microbatch;
  }

  const StageCost& cost(int stage) const {
    return costs_.stages[costs_.stages.size() == 1 ? 0 : stage];
  }

  double duration(const Pass& pass) const {
    const StageCost& c = cost(pass.stage);
    if (pass.kind == ActionKind::kForward) return c.forward;
    return (makes_input_gradient(pass.kind) ? c.backward_input : 0) +
           (makes_weight_gradient(pass.kind) ? c.backward_weight : 0);
  }

  double duration(const Action& action) const {
    double sum = 0;
    for (const Pass& pass : Passes(action)) sum += duration(pass);
    return action.kind == ActionKind::kOverlap ? costs_.overlap * sum : sum;
  }

  std::optional<double> start_of(int rank, const Action& action) const {
    double start = free_at_[rank];
    for (const Pass& pass : Passes(action)) {
      const bool forward = pass.kind == ActionKind::kForward;
      if (pass.kind == ActionKind::kBackwardWeight) continue;
      if (forward ? s_.is_first(pass.stage) : s_.is_last(pass.stage)) continue;
      const int source = pass.stage + (forward ? -1 : 1);
      const double made = (forward ? output_at_ : gradient_at_)[cell(source, pass.microbatch)];
      if (made == kNotYet) return {};
      start = std::max(start, made + (s_.rank_of_stage[source] == rank ? 0 : costs_.latency));
    }
    return start;
  }

  void finish(const Action& action, double end) {
    for (const Pass& pass : Passes(action)) {
      if (pass.kind == ActionKind::kForward) output_at_[cell(pass.stage, pass.microbatch)] = end;
      if (makes_input_gradient(pass.kind)) gradient_at_[cell(pass.stage, pass.microbatch)] = end;
    }
  }

  const Schedule& s_;
  const Costs& costs_;
  std::vector<double> free_at_;     // by rank
  std::vector<double> output_at_;   // by (stage, microbatch)
  std::vector<double> gradient_at_; // by (stage, microbatch)
};

void validate(const Schedule& schedule, const Costs& costs) {
  const auto count = std::ssize(costs.stages);
  if (count != 1 && count != schedule.num_stages) {
    raise<ConfigError>("there are costs for {} stages, but the schedule has {}\n  try: one cost "
                       "for all stages, or one per stage",
                       count, schedule.num_stages);
  }
  bool good = costs.latency >= 0 && costs.overlap >= 0;
  for (const StageCost& c : costs.stages) {
    good = good && c.forward >= 0 && c.backward_input >= 0 && c.backward_weight >= 0;
  }
  if (!good) raise<ConfigError>("a cost of the schedule {} is negative", schedule.name);
}

} // namespace

Timeline simulate(const Schedule& schedule, const Costs& costs) {
  require_valid(schedule);
  validate(schedule, costs);
  return Simulation(schedule, costs).run();
}

double makespan(const Timeline& timeline) {
  double first = std::numeric_limits<double>::infinity();
  double last = -first;
  for (const auto& row : timeline.rows) {
    for (const Interval& interval : row) {
      first = std::min(first, interval.start);
      last = std::max(last, interval.end);
    }
  }
  return std::max(last - first, 0.0);
}

std::vector<RowUse> row_use(const Timeline& timeline) {
  const double whole = makespan(timeline);
  std::vector<RowUse> uses;
  for (const auto& row : timeline.rows) {
    RowUse use;
    double first = std::numeric_limits<double>::infinity();
    double last = -first;
    for (const Interval& interval : row) {
      if (is_compute(interval.action.kind)) use.busy += interval.end - interval.start;
      first = std::min(first, interval.start);
      last = std::max(last, interval.end);
    }
    use.window = std::max(last - first, 0.0);
    use.idle_share = whole > 0 ? 1 - use.busy / whole : 0;
    uses.push_back(use);
  }
  return uses;
}

double bubble(const Timeline& timeline) {
  double longest = 0;
  double busy = 0;
  for (const RowUse& use : row_use(timeline)) {
    if (use.window > longest) {
      longest = use.window;
      busy = use.busy;
    }
  }
  return longest - busy;
}

} // namespace pentatron::pipeline
