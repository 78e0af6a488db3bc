/// How many queues of a GPU a process uses (CUDA_DEVICE_MAX_CONNECTIONS).
///
/// Streams that share a queue run in the order of the host, so a transfer that waits would hold up
/// the later streams, and a pipeline could deadlock. CUDA's default is 8 queues; a run has a stream
/// for computation, up to six for a pipeline's messages and one for each of its groups. Source:
/// CUDA C++ Programming Guide, "CUDA Environment Variables".
#pragma once

namespace pentatron::comm {

inline constexpr int kMaxConnections = 32; ///< the most that CUDA has

/// Requests all queues unless the environment sets their number. Call it before CUDA is
/// initialised.
void use_all_connections();

/// Throws CommError if the environment leaves so few queues that messages of a pipeline may wait
/// for each other.
void check_connections();

} // namespace pentatron::comm
