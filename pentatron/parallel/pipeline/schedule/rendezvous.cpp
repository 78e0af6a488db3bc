#include "pentatron/parallel/pipeline/schedule/rendezvous.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <vector>

#include "pentatron/base/error.h"
#include "pentatron/parallel/pipeline/schedule/text.h"

namespace pentatron::pipeline {
namespace {

/// One end of a message.
struct Transfer {
  int rank = 0;
  int action = 0; // in the rank's list
  int after = 0;  // computations that were queued before it
  int match = -1; // the other end
  int stream = 0; // on its rank
  bool done = false;
};

struct Computation {
  int action = 0;
  std::vector<int> needs; // transfers
};

class Device {
 public:
  Device(const Schedule& schedule, Messages messages)
      : s_(schedule), one_stream_(messages == Messages::kOneStream), ranks_(schedule.num_ranks) {
    for (int rank = 0; rank < s_.num_ranks; ++rank) read(rank);
    for (const auto& [pair, ends] : pairs_) {
      const size_t both = std::min(ends[0].size(), ends[1].size());
      for (size_t i = 0; i < both; ++i) {
        transfers_[ends[0][i]].match = ends[1][i];
        transfers_[ends[1][i]].match = ends[0][i];
      }
    }
  }

  std::string run() {
    std::vector<int> awake(ranks_.size());
    for (int rank = 0; rank < s_.num_ranks; ++rank) awake[rank] = rank;
    while (!awake.empty()) {
      const int rank = awake.back();
      awake.pop_back();
      advance(rank, awake);
    }
    for (int rank = 0; rank < s_.num_ranks; ++rank) {
      if (!finished(rank)) return describe(rank);
    }
    return {};
  }

 private:
  struct Rank {
    std::vector<Computation> computations;
    size_t computed = 0;
    std::vector<std::vector<int>> streams;        // transfers, in the order of the host
    std::vector<size_t> heads;                    // by stream
    std::map<std::pair<int, int>, int> stream_of; // by ordered pair
  };

  void read(int rank) {
    Rank& r = ranks_[rank];
    std::map<std::tuple<Payload, int, int>, int> receives; // by payload, stage, microbatch
    const std::vector<Action>& actions = s_.actions[rank];
    for (int i = 0; i < std::ssize(actions); ++i) {
      const Action& action = actions[i];
      if (is_compute(action.kind)) {
        Computation computation{.action = i};
        for (const Pass& pass : Passes(action)) {
          if (pass.kind == ActionKind::kBackwardWeight) continue;
          const Payload payload =
              pass.kind == ActionKind::kForward ? Payload::kActivation : Payload::kGradient;
          const auto found = receives.find({payload, pass.stage, pass.microbatch});
          if (found != receives.end()) computation.needs.push_back(found->second);
        }
        r.computations.push_back(std::move(computation));
      } else if (action.kind != ActionKind::kFree) {
        const bool sends = action.kind == ActionKind::kSend;
        const int id = add_transfer(rank, i, action, sends);
        if (!sends) receives[{action.payload, action.stage, action.microbatch}] = id;
      }
    }
  }

  int add_transfer(int rank, int index, const Action& action, bool sends) {
    Rank& r = ranks_[rank];
    const std::pair<int, int> pair =
        sends ? std::pair(rank, action.peer) : std::pair(action.peer, rank);
    const std::pair<int, int> queue = one_stream_ ? std::pair(-1, -1) : pair;
    const auto [slot, fresh] = r.stream_of.try_emplace(queue, static_cast<int>(r.streams.size()));
    if (fresh) {
      r.streams.emplace_back();
      r.heads.push_back(0);
    }
    const int id = static_cast<int>(transfers_.size());
    transfers_.push_back({.rank = rank,
                          .action = index,
                          .after = static_cast<int>(r.computations.size()),
                          .stream = slot->second});
    r.streams[slot->second].push_back(id);
    pairs_[pair][sends ? 0 : 1].push_back(id);
    return id;
  }

  /// Whether the transfer is the next of its queue and what it waits for has been computed.
  bool started(int id) const {
    const Transfer& transfer = transfers_[id];
    const Rank& r = ranks_[transfer.rank];
    const size_t head = r.heads[transfer.stream];
    return !transfer.done && r.streams[transfer.stream][head] == id &&
           static_cast<int>(r.computed) >= transfer.after;
  }

  void advance(int rank, std::vector<int>& awake) {
    Rank& r = ranks_[rank];
    for (bool moved = true; moved;) {
      moved = false;
      while (r.computed < r.computations.size() &&
             std::ranges::all_of(r.computations[r.computed].needs,
                                 [&](int id) { return transfers_[id].done; })) {
        ++r.computed;
        moved = true;
      }
      for (size_t stream = 0; stream < r.streams.size(); ++stream) {
        while (end_head(rank, stream, awake)) moved = true;
      }
    }
  }

  /// Ends the first transfer of a queue and its other end, if both have started.
  bool end_head(int rank, size_t stream, std::vector<int>& awake) {
    Rank& r = ranks_[rank];
    if (r.heads[stream] == r.streams[stream].size()) return false;
    const int id = r.streams[stream][r.heads[stream]];
    const int match = transfers_[id].match;
    if (match < 0 || !started(id) || !started(match)) return false;
    for (const int end : {id, match}) {
      transfers_[end].done = true;
      ++ranks_[transfers_[end].rank].heads[transfers_[end].stream];
    }
    awake.push_back(transfers_[match].rank);
    return true;
  }

  bool finished(int rank) const {
    const Rank& r = ranks_[rank];
    for (size_t stream = 0; stream < r.streams.size(); ++stream) {
      if (r.heads[stream] < r.streams[stream].size()) return false;
    }
    return r.computed == r.computations.size();
  }

  std::string at(int rank, int action) const {
    return fmt::format("rank {}, action {} ({})", rank, action, to_text(s_.actions[rank][action]));
  }

  /// The first transfer of a rank that waits although its computations have run, else the one that
  /// its next computation waits for.
  int blocked_transfer(int rank) const {
    const Rank& r = ranks_[rank];
    for (size_t stream = 0; stream < r.streams.size(); ++stream) {
      if (r.heads[stream] == r.streams[stream].size()) continue;
      const int id = r.streams[stream][r.heads[stream]];
      if (started(id)) return id;
    }
    for (const int id : r.computations[r.computed].needs) {
      if (!transfers_[id].done) return id;
    }
    return -1;
  }

  std::string describe(int rank) const {
    const int id = blocked_transfer(rank);
    if (id < 0) return at(rank, ranks_[rank].computations[ranks_[rank].computed].action) + " waits";
    const Transfer& waits = transfers_[id];
    const std::string text = at(waits.rank, waits.action) + " waits for its other end";
    if (waits.match < 0) return text + ", which is never queued";
    const Transfer& other = transfers_[waits.match];
    const int behind = blocked_transfer(other.rank);
    if (behind < 0) return text;
    return fmt::format("{}, {}, while {} waits itself", text, at(other.rank, other.action),
                       at(other.rank, transfers_[behind].action));
  }

  const Schedule& s_;
  const bool one_stream_;
  std::vector<Rank> ranks_;
  std::vector<Transfer> transfers_;
  std::map<std::pair<int, int>, std::array<std::vector<int>, 2>> pairs_; // sends, receives
};

} // namespace

std::string rendezvous_deadlock(const Schedule& schedule, Messages messages) {
  return Device(schedule, messages).run();
}

} // namespace pentatron::pipeline
