/// Ranks as processes that mpirun or srun has started, connected by MPI.
///
/// Collectives and transfers go through one engine a process. It sends and receives without
/// blocking; ranks that wait drive it, and while all compute a thread of its own does. So
/// communication overlaps with computation, an idle process burns no CPU, and more ranks than cores
/// work.
#pragma once

#include "pentatron/comm/group.h"

#include <cstdint>
#include <functional>
#include <memory>

namespace pentatron::comm {

/// Whether this build has the mpi backend.
bool mpi_available();

/// Must be the same on all ranks.
struct MpiOptions {
  int64_t max_message_bytes = int64_t{1} << 30; ///< MPI counts in int: larger ones are cut
  int64_t inline_bytes = 8192;                  ///< up to here data travels with the first message
  int64_t step_bytes =
      int64_t{1} << 18;        ///< what one rank receives from another in a step of a reduction
  double leave_timeout_s = 30; ///< after a failure: how long to wait for the others to leave
};

/// The processes of one job. One object a process; all processes construct it, call the same runs
/// and destroy it.
class MpiWorld {
 public:
  /// Starts MPI, unless somebody has. Throws CommError if this build has no mpi backend or the MPI
  /// library takes no calls from several threads.
  explicit MpiWorld(const MpiOptions& options = {});
  /// Ends MPI if it was started here and every rank has left its last run.
  ~MpiWorld();
  MpiWorld(const MpiWorld&) = delete;
  MpiWorld& operator=(const MpiWorld&) = delete;

  int rank() const;
  int size() const;

  /// Calls `body(world)` and returns when it has returned on all ranks.
  ///
  /// Throws on every rank what the first failing rank threw, its type kept and "rank 1 of 2: "
  /// before its sentence; the other ranks leave the communication they wait in, or reach next, with
  /// CommError. A rank that returns while others wait for it is a CommError too. Groups of a run
  /// end with it. The collectives of one group, and splits, must come from one thread at a time.
  void run(const std::function<void(Group world)>& body);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

} // namespace pentatron::comm
