/// Messages by MPI.
#pragma once

#include "pentatron/comm/backend/messages/transport.h"

#include <memory>

namespace pentatron::comm::mpi {

/// Whether this build has it.
bool available();

/// All processes of MPI_COMM_WORLD call it together. Starts MPI, unless somebody has, and ends it
/// again if every rank has left its last run. Throws CommError if this build has no MPI, or the
/// library takes no calls from several threads.
std::unique_ptr<messages::Transport> make_transport();

} // namespace pentatron::comm::mpi
