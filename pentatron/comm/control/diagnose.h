/// What is wrong with a set of ranks that report what they do: a pure function, used by the control
/// channel between processes and by the watcher of thread ranks.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "pentatron/comm/control/status.h"

namespace pentatron::comm::control {

/// One rank of the world as last heard of. Ranks named in `status` are ranks of the world.
struct RankView {
  RankStatus status;
  bool finished = false; ///< it has returned and will join nothing more
};

struct Finding {
  int rank = -1; ///< rank that caused the failure; -1: no single rank
  std::string sentence;
};

/// The first of:
/// - ranks that disagree on an operation or its shape:
///     "all_reduce #17 of group tp differs between ranks: rank 0 calls all_reduce(sum) of float32
///     [3, 4], rank 2 calls all_gather of float32 [3, 4]"
/// - a rank that has finished while others wait for it
/// - a wait longer than `timeout_s`, with the rank that the chain of waits leads to:
///     "rank 2 has not arrived at all_reduce(sum) #17 of group tp of float32 [3, 4] for 5 s; ranks
///     0, 1, 3 wait; rank 2 last finished barrier #3 of group world"
///   or ranks that wait for each other. A rank whose GPU has an operation in its queue has not
///   arrived there. A rank that does long work (long_work.h) and has reported progress within
///   `timeout_s` does not count as late. Returns nothing if no problem is found. `ranks[i]` is
///   world rank i.
std::optional<Finding> diagnose(const std::vector<RankView>& ranks, double timeout_s);

/// What rank `lost`, which does nothing any more, leaves behind, to follow "rank 2 was killed":
///   " at all_reduce(sum) #17 of group tp of float32 [3, 4], where ranks 0, 1 wait"
std::string where_lost(const std::vector<RankView>& ranks, int lost);

/// "rank 2", "ranks 0, 1, 3"
std::string rank_list(const std::vector<int>& ranks);

} // namespace pentatron::comm::control
