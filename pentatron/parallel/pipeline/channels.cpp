#include "pentatron/parallel/pipeline/channels.h"

#include <set>

#include <fmt/format.h>

#include "pentatron/base/error.h"

namespace pentatron::pipeline {

namespace {

using Pair = std::pair<int, int>;

std::set<Pair> pairs_of(const std::vector<int>& rank_of_stage, bool training) {
  std::set<Pair> pairs;
  for (size_t stage = 1; stage < rank_of_stage.size(); ++stage) {
    const int a = rank_of_stage[stage - 1], b = rank_of_stage[stage];
    if (a == b) continue;
    pairs.insert({a, b});
    if (training) pairs.insert({b, a});
  }
  return pairs;
}

/// The pairs as few lists, in each of which a rank is at most once: a list is one split.
std::vector<std::vector<Pair>> rounds_of(const std::set<Pair>& pairs) {
  std::vector<std::vector<Pair>> rounds;
  std::vector<std::set<int>> busy;
  for (const Pair& pair : pairs) {
    size_t round = 0;
    while (round < rounds.size() &&
           (busy[round].contains(pair.first) || busy[round].contains(pair.second)))
      ++round;
    if (round == rounds.size()) {
      rounds.emplace_back();
      busy.emplace_back();
    }
    rounds[round].push_back(pair);
    busy[round].insert({pair.first, pair.second});
  }
  return rounds;
}

std::string name_of(size_t round) {
  return fmt::format("pp-channel-{}", round);
}

} // namespace

std::vector<comm::NeededGroup> channel_groups(const std::vector<int>& rank_of_stage,
                                              bool training) {
  std::vector<comm::NeededGroup> needed;
  for (const std::vector<Pair>& round : rounds_of(pairs_of(rank_of_stage, training))) {
    std::vector<std::vector<int>> parts;
    for (const Pair& pair : round) parts.push_back({pair.first, pair.second});
    needed.push_back({name_of(needed.size()), "pp", std::move(parts), comm::GroupUse::kTransfers});
  }
  return needed;
}

Channels::Channels(const comm::ParallelGroups& groups, const std::vector<int>& rank_of_stage,
                   bool training)
    : pipeline_(groups.pp()), apart_(true) {
  const std::vector<std::vector<Pair>> rounds = rounds_of(pairs_of(rank_of_stage, training));
  for (size_t round = 0; round < rounds.size(); ++round)
    for (const Pair& pair : rounds[round])
      if (pair.first == pipeline_.rank() || pair.second == pipeline_.rank())
        groups_.emplace(pair, groups.get(name_of(round)));
}

Channels::End Channels::end(const Pair& pair, int peer) const {
  if (!apart_) return {&pipeline_, peer};
  const auto found = groups_.find(pair);
  if (found == groups_.end())
    raise<Error>("internal error: no stages of the pipeline send from rank {} to rank {}",
                 pair.first, pair.second);
  return {&found->second, peer == pair.first ? 0 : 1};
}

} // namespace pentatron::pipeline
