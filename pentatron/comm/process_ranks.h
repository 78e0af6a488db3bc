/// This process as one rank of a run whose processes a launcher has started, monitored through the
/// control channel.
#pragma once

#include "pentatron/comm/dist_config.h"
#include "pentatron/comm/group.h"
#include "pentatron/comm/launch.h"
#include "pentatron/comm/process_world.h"

#include <functional>
#include <optional>

namespace pentatron::comm {

struct ProcessOptions {
  ProcessBackend backend = ProcessBackend::kAuto;
  DistConfig dist;
  std::optional<int> gpu; ///< of this rank's tensors; dist.gpu_messages says what carries them
};

/// Calls `body(world)` with the group of all ranks and returns when it has
/// returned on every rank. Once a process.
///
/// The monitor is the supervisor's if one has started the ranks (supervisor.h), else it runs in
/// rank 0. If `body` throws, the monitor prints the sentence and ends every rank, this one
/// included, with exit code 1; likewise if a rank dies, stops, or does not arrive within
/// dist.timeout_s. Throws ConfigError or CommError if the ranks cannot connect.
void run_process_rank(const Launch& launch, const ProcessOptions& options,
                      const std::function<void(Group world)>& body);

} // namespace pentatron::comm
