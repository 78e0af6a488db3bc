// check() says of a schedule what its execution on real threads says.
#include <cstdlib>
#include <random>

#include <gtest/gtest.h>

#include "pentatron/base/error.h"
#include "pentatron/parallel/pipeline/schedule/check.h"
#include "pentatron/parallel/pipeline/schedule/forward_only.h"
#include "pentatron/parallel/pipeline/schedule/lower.h"
#include "tests/parallel/pipeline/schedule/executor.h"
#include "tests/parallel/pipeline/schedule/schedule_text.h"

namespace pentatron::pipeline {
namespace {

using execution::execute;
using execution::Outcome;
using test::to_text;

/// How many schedules a test tries; PENTATRON_SCHEDULES=100000 for a long run.
int num_schedules(int usual) {
  const char* wanted = std::getenv("PENTATRON_SCHEDULES");
  return wanted ? std::atoi(wanted) : usual;
}

class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}
  /// From `low` to `high`, both included.
  int between(int low, int high) {
    return low + static_cast<int>(engine_() % static_cast<uint64_t>(high - low + 1));
  }
  bool chance(int percent) { return between(1, 100) <= percent; }

 private:
  std::mt19937_64 engine_;
};

Schedule generated(Random& random) {
  const auto& names = schedule_names();
  const std::string& name = names[random.between(0, static_cast<int>(names.size()) - 1)];
  const int v = name == "interleaved" ? random.between(2, 3) : 0;
  return make_schedule(name, random.between(1, 4), v, random.between(1, 9));
}

/// Any placement of stages and any order that respects the data: built by running it.
Schedule grown(Random& random) {
  Schedule s{.name = "random",
             .num_ranks = random.between(1, 4),
             .num_stages = random.between(1, 6),
             .num_microbatches = random.between(1, 5)};
  s.actions.resize(s.num_ranks);
  for (int i = 0; i < s.num_stages; ++i) {
    s.rank_of_stage.push_back(random.between(0, s.num_ranks - 1));
  }
  const int cells = s.num_stages * s.num_microbatches;
  std::vector<int> state(cells); // 0 nothing, 1 F, 2 I, 3 all
  const auto at = [&](int stage, int mb) -> int& { return state[stage * s.num_microbatches + mb]; };
  const auto can_forward = [&](int stage, int mb) {
    return at(stage, mb) == 0 && (stage == 0 || at(stage - 1, mb) >= 1);
  };
  const auto can_backward = [&](int stage, int mb) {
    return at(stage, mb) == 1 && (stage == s.num_stages - 1 || at(stage + 1, mb) >= 2);
  };
  for (int done = 0; done < cells;) {
    const int stage = random.between(0, s.num_stages - 1);
    const int mb = random.between(0, s.num_microbatches - 1);
    auto& steps = s.actions[s.rank_of_stage[stage]];
    if (can_forward(stage, mb)) {
      const int other = random.between(0, s.num_stages - 1);
      const int other_mb = random.between(0, s.num_microbatches - 1);
      if (s.rank_of_stage[other] == s.rank_of_stage[stage] && can_backward(other, other_mb)) {
        steps.push_back(overlap(stage, mb, other, other_mb));
        at(other, other_mb) = 3;
        ++done;
      } else {
        steps.push_back(forward(stage, mb));
      }
      at(stage, mb) = 1;
    } else if (can_backward(stage, mb)) {
      const bool whole = random.chance(50);
      steps.push_back(whole ? backward(stage, mb) : backward_input(stage, mb));
      at(stage, mb) = whole ? 3 : 2;
      done += whole;
    } else if (at(stage, mb) == 2) {
      steps.push_back(backward_weight(stage, mb));
      at(stage, mb) = 3;
      ++done;
    }
  }
  return s;
}

void retarget(Schedule& s, Action& action, Random& random) {
  switch (random.between(0, 6)) {
  case 0:
    action.stage = random.between(-1, s.num_stages);
    break;
  case 1:
    action.microbatch = random.between(-1, s.num_microbatches);
    break;
  case 2:
    action.second_stage = random.between(-1, s.num_stages);
    break;
  case 3:
    action.second_microbatch = random.between(-1, s.num_microbatches);
    break;
  case 4:
    action.peer = random.between(-1, s.num_ranks);
    break;
  case 5:
    action.payload = random.chance(50) ? Payload::kActivation : Payload::kGradient;
    break;
  default:
    action.kind = static_cast<ActionKind>(random.between(0, kNumActionKinds - 1));
  }
}

void mutate(Schedule& s, Random& random) {
  auto& steps = s.actions[random.between(0, s.num_ranks - 1)];
  if (steps.empty()) return;
  const int last = static_cast<int>(steps.size()) - 1;
  const int i = random.between(0, last);
  switch (random.between(0, s.lowered ? 8 : 6)) {
  case 0:
    std::swap(steps[i], steps[random.between(0, last)]);
    break;
  case 1: // neighbours: often still right
    std::swap(steps[i], steps[std::min(i + 1, last)]);
    break;
  case 2:
    steps.erase(steps.begin() + i);
    break;
  case 3: {
    const Action copy = steps[i];
    steps.insert(steps.begin() + random.between(0, last), copy);
    break;
  }
  case 4: { // to another rank
    const Action moved = steps[i];
    steps.erase(steps.begin() + i);
    auto& other = s.actions[random.between(0, s.num_ranks - 1)];
    other.insert(other.begin() + random.between(0, static_cast<int>(other.size())), moved);
    break;
  }
  case 5:
    if (random.chance(10)) {
      s.rank_of_stage[random.between(0, s.num_stages - 1)] = random.between(0, s.num_ranks - 1);
      break;
    }
    [[fallthrough]];
  case 6:
    retarget(s, steps[i], random);
    break;
  case 7: { // twice in a row: a message too many
    const Action copy = steps[i];
    steps.insert(steps.begin() + i, copy);
    break;
  }
  default: // a receive that nobody asked for
    steps.insert(steps.begin() + i,
                 {.kind = ActionKind::kRecv,
                  .stage = steps[i].stage,
                  .microbatch = random.between(0, s.num_microbatches - 1),
                  .peer = random.between(0, s.num_ranks - 1),
                  .payload = random.chance(50) ? Payload::kActivation : Payload::kGradient});
  }
}

struct Counts {
  int ok = 0, broken = 0, deadlock = 0;
  void add(Verdict::Kind kind) {
    ++(kind == Verdict::Kind::kOk ? ok : kind == Verdict::Kind::kBroken ? broken : deadlock);
  }
};

/// One verdict from both; false stops a test at its first difference.
bool agree(const Schedule& s, uint64_t seed, Counts& counts) {
  const Verdict verdict = check(s);
  const Outcome outcome = execute(s);
  counts.add(outcome.kind);
  EXPECT_EQ(static_cast<int>(verdict.kind), static_cast<int>(outcome.kind))
      << "seed " << seed << "\ncheck: " << verdict.problem << "\nexecution: " << outcome.reason
      << "\n"
      << to_text(s);
  EXPECT_EQ(verdict.ok(), verdict.problem.empty());
  if (verdict.ok() && outcome.kind == verdict.kind) {
    EXPECT_EQ(verdict.peaks, outcome.peaks);
    // What runs where sends never wait runs where they wait, with a stream for each pair of ranks.
    EXPECT_EQ(check(s, Purpose::kTraining, Messages::kChannels).problem, "") << "seed " << seed;
  }
  return verdict.kind == outcome.kind;
}

TEST(Execution, ValidSchedulesRunBeforeAndAfterLowering) {
  Counts counts;
  const int tries = num_schedules(800);
  for (int seed = 0; seed < tries; ++seed) {
    Random random(seed);
    const Schedule s = seed % 2 == 0 ? generated(random) : grown(random);
    if (!agree(s, seed, counts)) return;
    if (!agree(lower(s, {.prefetch = random.between(0, 4)}), seed, counts)) return;
  }
  EXPECT_EQ(counts.ok, 2 * tries);
}

TEST(Execution, MutatedSchedulesGetTheVerdictOfTheirExecution) {
  for (const bool lowered : {false, true}) {
    Counts counts;
    const int tries = num_schedules(4000);
    for (int seed = 0; seed < tries; ++seed) {
      Random random(seed);
      Schedule s = random.chance(50) ? generated(random) : grown(random);
      if (lowered && random.chance(40)) { // wrong before lowering: mostly deadlocks
        Schedule wrong = s;
        mutate(wrong, random);
        try {
          s = lower(wrong);
        } catch (const ConfigError&) {
          s = lower(s);
        }
        if (!agree(s, seed, counts)) return;
        continue;
      }
      if (lowered) s = lower(s, {.prefetch = random.between(0, 3)});
      for (int i = random.between(1, 3); i > 0; --i) mutate(s, random);
      if (!agree(s, seed, counts)) return;
    }
    // The mutations are of all kinds.
    EXPECT_GT(counts.ok, tries / 50) << "lowered " << lowered;
    EXPECT_GT(counts.broken, tries / 50) << "lowered " << lowered;
    EXPECT_GT(counts.deadlock, tries / 100) << "lowered " << lowered;
  }
}

TEST(Execution, ForwardsAloneRunInEverySchedule) {
  const int tries = num_schedules(300);
  for (int seed = 0; seed < tries; ++seed) {
    Random random(seed);
    const Schedule s = forward_only(seed % 2 == 0 ? generated(random) : grown(random));
    for (const Schedule& form : {s, lower(s)}) {
      const Verdict verdict = check(form, Purpose::kEvaluation);
      const Outcome outcome = execute(form, Purpose::kEvaluation);
      ASSERT_TRUE(verdict.ok()) << "seed " << seed << ": " << verdict.problem << to_text(form);
      ASSERT_EQ(outcome.kind, Verdict::Kind::kOk) << "seed " << seed << ": " << outcome.reason;
      ASSERT_FALSE(check(form).ok());
    }
  }
}

/// The schedule without what lower() added.
Schedule without_messages(Schedule schedule) {
  schedule.lowered = false;
  for (std::vector<Action>& steps : schedule.actions)
    std::erase_if(steps, [](const Action& action) { return !is_compute(action.kind); });
  return schedule;
}

/// lower() takes what check() accepts, and refuses or stays wrong with what it rejects.
TEST(Execution, LoweringKeepsTheVerdict) {
  const int tries = num_schedules(5000);
  int lowered = 0;
  for (int seed = 0; seed < tries; ++seed) {
    Random random(seed);
    Schedule s = random.chance(50) ? generated(random) : grown(random);
    for (int i = random.between(1, 2); i > 0; --i) mutate(s, random);
    const bool ok = check(s).ok();
    try {
      const Schedule low = lower(s);
      ++lowered;
      ASSERT_EQ(check(low).ok(), ok) << "seed " << seed << "\n" << check(low).problem << to_text(s);
      ASSERT_EQ(without_messages(low), s) << "seed " << seed;
    } catch (const Error&) {
      ASSERT_FALSE(ok) << "seed " << seed << "\n" << to_text(s);
    }
  }
  EXPECT_GT(lowered, tries / 10);
}

} // namespace
} // namespace pentatron::pipeline
