/// Whether the messages of a lowered schedule get through where a send waits for its receive.
#pragma once

#include <string>

#include "pentatron/parallel/pipeline/schedule/check.h"

namespace pentatron::pipeline {

/// Executes a lowered schedule that check() accepts with buffered messages. `messages` is kChannels
/// or kOneStream. Returns the sentence of a deadlock, or nothing.
///
/// The model is that of NCCL's transfers. The host only puts work into queues and never waits. A
/// rank has a queue of computations and queues of transfers. A transfer starts when those before it
/// in its queue have ended and when all computations that the host had queued before it have run. A
/// send and its receive end together, when both have started. A pass waits for the receives of its
/// inputs.
///
/// With a queue for each ordered pair of ranks (kChannels) this never fails: the n-th message of a
/// pair waits only for earlier messages of the pair, whose sends and receives were queued before
/// it, so by induction every transfer ends that a buffered send would have ended. The function does
/// not use this argument, it executes. With one queue for each rank 1F1B deadlocks: a rank sends an
/// activation forward while its neighbour sends a gradient back.
/// Source: NCCL user guide, "Point-to-point communication".
std::string rendezvous_deadlock(const Schedule& schedule, Messages messages);

} // namespace pentatron::pipeline
