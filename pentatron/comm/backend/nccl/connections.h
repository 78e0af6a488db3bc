/// How many queues of a GPU a process uses (CUDA_DEVICE_MAX_CONNECTIONS), and the priorities of its
/// streams.
///
/// Streams that share a queue run in the order of the host, so a transfer that waits would hold up
/// the later streams, and a pipeline could deadlock. CUDA's default is 8 queues; a run has a stream
/// for computation, up to six for a pipeline's messages and one for each of its groups. Source:
/// CUDA C++ Programming Guide, "CUDA Environment Variables".
#pragma once

#include "pentatron/comm/group.h"

namespace pentatron::comm {

inline constexpr int kMaxConnections = 32; ///< the most that CUDA has

/// Requests all queues unless the environment sets their number. Call it before CUDA is
/// initialised.
void use_all_connections();

/// Throws CommError if the environment leaves so few queues that messages of a pipeline may wait
/// for each other.
void check_connections();

/// The priority of a group's stream; CUDA's range goes from `least` to `greatest`, which is
/// negative, and kernels that compute have 0. What the next computation waits for goes before what
/// runs beside it, and every exchange before new blocks of kernels that compute.
int stream_priority(GroupUse use, int least, int greatest);

} // namespace pentatron::comm
