#include "pentatron/parallel/pipeline/schedule/schedule.h"

#include <algorithm>

#include <fmt/ranges.h>

#include "pentatron/base/error.h"
#include "pentatron/base/nearest.h"
#include "pentatron/base/text.h"
#include "pentatron/parallel/pipeline/schedule/generators.h"

namespace pentatron::pipeline {
namespace {

enum class Placement {
  kOne,  // stage s on rank s
  kLoop, // stage s on rank s mod p
  kV,    // stages s and 2p-1-s on rank s
};

struct Entry {
  const char* name;
  Placement placement;
  void (*generate)(Schedule&);
};

constexpr Entry kEntries[] = {
    {"gpipe", Placement::kOne, gpipe},
    {"1f1b", Placement::kOne, one_f_one_b},
    {"interleaved", Placement::kLoop, interleaved},
    {"zb_h1", Placement::kOne, zb_h1},
    {"zb_h2", Placement::kOne, zb_h2},
    {"zb_v", Placement::kV, zb_v},
    {"dualpipe_v", Placement::kV, dualpipe_v},
};

const Entry& find(std::string_view name) {
  for (const Entry& entry : kEntries) {
    if (name == entry.name) return entry;
  }
  raise<ConfigError>("parallel.pipeline_schedule={} does not exist\n  try: "
                     "parallel.pipeline_schedule in {{{}}}",
                     excerpt(name), fmt::join(schedule_names(), ", "));
}

int rank_of(Placement placement, int stage, int num_ranks) {
  if (placement == Placement::kV && stage >= num_ranks) return 2 * num_ranks - 1 - stage;
  return stage % num_ranks;
}

} // namespace

std::vector<int> Schedule::stages_of(int rank) const {
  std::vector<int> stages;
  for (int stage = 0; stage < num_stages; ++stage) {
    if (rank_of_stage[stage] == rank) stages.push_back(stage);
  }
  return stages;
}

Passes::Passes(const Action& action) {
  if (!is_compute(action.kind)) return;
  const bool pair = action.kind == ActionKind::kOverlap;
  passes_[0] = {pair ? ActionKind::kForward : action.kind, action.stage, action.microbatch};
  passes_[1] = {ActionKind::kBackward, action.second_stage, action.second_microbatch};
  size_ = pair ? 2 : 1;
}

bool defers_weight_gradients(const Schedule& schedule) {
  return std::ranges::any_of(schedule.actions, [](const std::vector<Action>& steps) {
    return std::ranges::find(steps, ActionKind::kBackwardWeight, &Action::kind) != steps.end();
  });
}

Action forward(int stage, int microbatch) {
  return {.kind = ActionKind::kForward, .stage = stage, .microbatch = microbatch};
}

Action backward(int stage, int microbatch) {
  return {.kind = ActionKind::kBackward, .stage = stage, .microbatch = microbatch};
}

Action backward_input(int stage, int microbatch) {
  return {.kind = ActionKind::kBackwardInput, .stage = stage, .microbatch = microbatch};
}

Action backward_weight(int stage, int microbatch) {
  return {.kind = ActionKind::kBackwardWeight, .stage = stage, .microbatch = microbatch};
}

Action overlap(int forward_stage, int forward_microbatch, int backward_stage,
               int backward_microbatch) {
  return {.kind = ActionKind::kOverlap,
          .stage = forward_stage,
          .microbatch = forward_microbatch,
          .second_stage = backward_stage,
          .second_microbatch = backward_microbatch};
}

void keep_microbatches(Schedule& schedule, int num_microbatches) {
  for (std::vector<Action>& steps : schedule.actions) {
    std::vector<Action> kept;
    kept.reserve(steps.size());
    for (const Action& action : steps) {
      const bool first = action.microbatch < num_microbatches;
      const bool second = action.second_microbatch < num_microbatches;
      if (action.kind != ActionKind::kOverlap) {
        if (first) kept.push_back(action);
      } else if (first && second) {
        kept.push_back(action);
      } else if (first) {
        kept.push_back(forward(action.stage, action.microbatch));
      } else if (second) {
        kept.push_back(backward(action.second_stage, action.second_microbatch));
      }
    }
    steps = std::move(kept);
  }
  schedule.num_microbatches = num_microbatches;
}

const std::vector<std::string>& schedule_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
    for (const Entry& entry : kEntries) all.emplace_back(entry.name);
    return all;
  }();
  return names;
}

int stages_per_rank(std::string_view name, int virtual_stages) {
  const Entry& entry = find(name);
  if (entry.placement == Placement::kLoop) {
    if (virtual_stages < 0) {
      raise<ConfigError>("parallel.virtual_pipeline_model_parallel_size={} is not positive\n  try: "
                         "parallel.virtual_pipeline_model_parallel_size=2",
                         virtual_stages);
    }
    return std::max(virtual_stages, 2);
  }
  const int fixed = entry.placement == Placement::kV ? 2 : 1;
  if (virtual_stages != 0 && virtual_stages != 1 && virtual_stages != fixed) {
    raise<ConfigError>("parallel.virtual_pipeline_model_parallel_size={} does not match "
                       "parallel.pipeline_schedule={}, which has {} per rank\n  try: "
                       "parallel.virtual_pipeline_model_parallel_size=null or "
                       "parallel.pipeline_schedule=interleaved",
                       virtual_stages, name, fixed == 1 ? "one stage" : "two stages");
  }
  return fixed;
}

Schedule make_schedule(std::string_view name, int num_ranks, int virtual_stages,
                       int num_microbatches) {
  const Entry& entry = find(name);
  const int per_rank = stages_per_rank(name, virtual_stages);
  if (num_ranks < 1 || num_ranks > kMaxRanks) {
    raise<ConfigError>("parallel.pipeline_model_parallel_size={} is not in 1 to {}\n  try: "
                       "parallel.pipeline_model_parallel_size={}",
                       num_ranks, kMaxRanks, std::clamp<int64_t>(num_ranks, 1, kMaxRanks));
  }
  if (num_microbatches < 1 || num_microbatches > kMaxMicrobatches) {
    raise<ConfigError>("a step of {} microbatches per data-parallel rank cannot be scheduled, only "
                       "1 to {}",
                       num_microbatches, kMaxMicrobatches);
  }
  // A pattern may be made for as many as 2p - 1 further microbatches, with three passes each.
  const int64_t widest = int64_t{num_microbatches} + 2 * int64_t{num_ranks};
  if (per_rank > kMaxActions / num_ranks || 3 * widest > kMaxActions / num_ranks / per_rank) {
    raise<ConfigError>("a schedule of {} ranks x {} stages x {} microbatches has more than {} "
                       "actions",
                       num_ranks, per_rank, num_microbatches, kMaxActions);
  }
  Schedule schedule{.name = std::string(name),
                    .num_ranks = num_ranks,
                    .num_stages = num_ranks * per_rank,
                    .num_microbatches = num_microbatches};
  for (int stage = 0; stage < schedule.num_stages; ++stage) {
    schedule.rank_of_stage.push_back(rank_of(entry.placement, stage, num_ranks));
  }
  schedule.actions.resize(num_ranks);
  entry.generate(schedule);
  return schedule;
}

} // namespace pentatron::pipeline
