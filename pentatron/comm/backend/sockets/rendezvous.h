/// How the processes of a job find each other without MPI.
///
/// On one machine: each listens on an abstract Unix socket whose name is made of user, job and
/// rank, and takes only processes of the same user. Between machines: each listens on a TCP port;
/// rank 0's is known, and it tells the others'. Who connects proves that it knows the job's secret,
/// and so does who is connected to. What follows is not encrypted.
#pragma once

#include "pentatron/comm/control/connection.h"
#include "pentatron/comm/launch.h"

#include <vector>

namespace pentatron::comm::sockets {

inline constexpr char kSecretVariable[] = "PENTATRON_JOB_SECRET";

/// A connected socket to each rank, by rank; that of this rank is invalid. Waits at most
/// `timeout_s`. Throws ConfigError where ranks on several machines have no secret, CommError naming
/// the ranks that have not arrived.
std::vector<control::Descriptor> connect_ranks(const Launch& launch, const Environment& environment,
                                               double timeout_s);

} // namespace pentatron::comm::sockets
