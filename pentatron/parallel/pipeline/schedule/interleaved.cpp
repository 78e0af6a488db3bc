#include <algorithm>

#include "pentatron/parallel/pipeline/schedule/generators.h"

namespace pentatron::pipeline {

/// Microbatches go in groups of p: a rank runs a group through its first stage, then through its
/// second, and so on; backwards the same from its last stage. Patterns are made for whole groups.
void interleaved(Schedule& schedule) {
  const int p = schedule.num_ranks;
  const int v = schedule.num_stages / p;
  const int m = schedule.num_microbatches;
  const int groups = (m + p - 1) / p;
  const int total = groups * p * v;
  const auto microbatch = [&](int k) { return k / (p * v) * p + k % p; };
  const auto turn = [&](int k) { return k % (p * v) / p; }; // which of the rank's stages
  for (int r = 0; r < p; ++r) {
    std::vector<Action>& steps = schedule.actions[r];
    const auto f = [&](int k) { steps.push_back(forward(turn(k) * p + r, microbatch(k))); };
    const auto b = [&](int k) {
      steps.push_back(backward((v - 1 - turn(k)) * p + r, microbatch(k)));
    };
    const int warmup = std::min(2 * (p - r - 1) + (v - 1) * p, total);
    for (int k = 0; k < warmup; ++k) f(k);
    for (int k = warmup; k < total; ++k) {
      f(k);
      b(k - warmup);
    }
    for (int k = total - warmup; k < total; ++k) b(k);
  }
  keep_microbatches(schedule, m);
}

} // namespace pentatron::pipeline
