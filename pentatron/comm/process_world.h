/// Ranks as processes, which a launcher has started (launch.h).
///
/// Messages are sent by MPI or by sockets. One engine per process implements collectives and
/// transfers with them. It sends and receives without blocking. Waiting ranks drive it; while all
/// ranks compute, a separate thread does. So communication overlaps with computation, an idle
/// process uses no CPU, and more ranks than cores work.
#pragma once

#include "pentatron/comm/group.h"
#include "pentatron/comm/launch.h"

#include <cstdint>
#include <functional>
#include <memory>

namespace pentatron::comm {

/// What carries messages between processes.
enum class ProcessBackend : uint8_t { kAuto, kMpi, kSockets };
constexpr auto enum_names(ProcessBackend) {
  return std::array{config::name(ProcessBackend::kAuto, "auto"),
                    config::name(ProcessBackend::kMpi, "mpi"),
                    config::name(ProcessBackend::kSockets, "sockets")};
}

/// Must be the same on all ranks.
struct MessageOptions {
  int64_t max_message_bytes = int64_t{1} << 30; ///< MPI counts in int: larger ones are cut
  int64_t inline_bytes = 8192;                  ///< up to here data travels with the first message
  int64_t step_bytes =
      int64_t{1} << 18;        ///< what one rank receives from another in a step of a reduction
  double leave_timeout_s = 30; ///< after a failure: how long to wait for the others to leave
};

/// The processes of one job. One object a process; all processes construct it, call the same runs
/// and destroy it.
class ProcessWorld {
 public:
  /// Connects the processes of `launch`, and waits at most `timeout_s` for them to arrive.
  ///
  /// kAuto: MPI under mpirun, and under srun where it serves MPI (--mpi=pmix); else sockets. Those
  /// are Unix sockets on one machine, open to this user only; between machines TCP, opened by a
  /// secret that torchrun's store hands out, or PENTATRON_JOB_SECRET (32 hexadecimal digits) with
  /// MASTER_ADDR and MASTER_PORT. Throws ConfigError if the launcher does not serve the backend or
  /// numbers the ranks otherwise, CommError if this build has no MPI, or ranks do not arrive.
  ProcessWorld(const Launch& launch, ProcessBackend backend, double timeout_s,
               const MessageOptions& options = {});
  ~ProcessWorld();
  ProcessWorld(const ProcessWorld&) = delete;
  ProcessWorld& operator=(const ProcessWorld&) = delete;

  int rank() const;
  int size() const;
  const char* backend() const; ///< "mpi" or "sockets"

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
