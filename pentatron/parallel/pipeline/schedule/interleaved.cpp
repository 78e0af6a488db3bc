#include <algorithm>
#include <utility>

#include "pentatron/parallel/pipeline/schedule/generators.h"

namespace pentatron::pipeline {
namespace {

/// The (turn, microbatch) pairs of a rank in the order of its forwards: group by group, and in a
/// group turn by turn, where a turn is one of the rank's v stages.
std::vector<std::pair<int, int>> order_of_forwards(int m, int groups, int v) {
  std::vector<std::pair<int, int>> order;
  int begin = 0;
  for (int group = 0; group < groups; ++group) {
    const int size = m / groups + (group < m % groups ? 1 : 0);
    for (int turn = 0; turn < v; ++turn) {
      for (int i = 0; i < size; ++i) order.emplace_back(turn, begin + i);
    }
    begin += size;
  }
  return order;
}

} // namespace

/// A group must have p microbatches or more, or a rank waits between turns. So where p does not
/// divide m the rest is dealt out over the groups, which costs a little memory; the larger groups
/// come first because the warm-up is as long as the first group needs.
void interleaved(Schedule& schedule) {
  const int p = schedule.num_ranks;
  const int v = schedule.num_stages / p;
  const int m = schedule.num_microbatches;
  const int groups = std::max(m / p, 1);
  const int largest = (m + groups - 1) / groups;
  const int total = m * v;
  const std::vector<std::pair<int, int>> order = order_of_forwards(m, groups, v);
  for (int r = 0; r < p; ++r) {
    std::vector<Action>& steps = schedule.actions[r];
    const auto f = [&](int k) {
      steps.push_back(forward(order[k].first * p + r, order[k].second));
    };
    const auto b = [&](int k) { // the same order from the last turn on
      steps.push_back(backward((v - 1 - order[k].first) * p + r, order[k].second));
    };
    const int warmup = std::min(2 * (p - r - 1) + (v - 1) * largest, total);
    for (int k = 0; k < warmup; ++k) f(k);
    for (int k = warmup; k < total; ++k) {
      f(k);
      b(k - warmup);
    }
    for (int k = total - warmup; k < total; ++k) b(k);
  }
}

} // namespace pentatron::pipeline
