/// Ranks as threads of this process.
#pragma once

#include "pentatron/comm/group.h"

#include <functional>

namespace pentatron::comm {

struct RankThreadsOptions {
  int threads_per_rank =
      0; ///< compute threads of each rank; 0: the caller's, divided over the ranks, at least 1
  double timeout_s = 0;   ///< longest wait in a collective; 0: no limit
  double heartbeat_s = 1; ///< how often the watch looks
  double grace_s = 3;     ///< under a watch: from a failure to the end of all ranks
  /// Operations of a group begin in the order in which a rank starts them, each when the one before
  /// it has ended, as in a stream of a GPU. Ranks that wait for each other then wait until the
  /// watch ends them.
  bool stream_order = false;
  /// Called with the reason when the grace is over and a rank still runs: a thread that computes
  /// cannot be ended alone. The default prints it and ends the process with exit code 1.
  std::function<void(const std::string& sentence)> on_stuck = {};
};

/// Calls `body(world)` on `world_size` threads, each with its own rank of the group "world", and
/// returns when all have returned. Grad mode and the rest of torch's thread-local state are the
/// caller's.
///
/// Throws what the first failing rank threw, its type kept and "rank 1 of 2: " before its sentence;
/// the other ranks leave the communication they wait in, or reach next, with CommError. A rank that
/// returns while others wait for it, and ranks that all wait for each other, are CommErrors too:
/// nothing waits forever for a message. With timeout_s, so is a wait that takes longer, with a
/// sentence that names the operation and the ranks that are missing. The collectives of one rank
/// must come from one thread at a time.
void run_ranks(int world_size, const RankThreadsOptions& options,
               const std::function<void(Group world)>& body);
void run_ranks(int world_size, const std::function<void(Group world)>& body);

/// MKL's vector functions choose their code in the first call; calls of other threads at that time
/// may get less exact code: exp in fp64 with 1e-9. This makes the first calls, on one thread, once
/// in a process. run_ranks() calls it; call it before computing elsewhere.
void make_first_vector_calls();

/// The world rank of the calling thread: 0 outside run_ranks.
int current_rank();
/// The calling thread works for a thread of run_ranks: it is of this rank, too.
void set_current_rank(int rank);

} // namespace pentatron::comm
