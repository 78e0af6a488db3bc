// Compiled in place of mpi_transport.cpp where MPI is not.
#include "pentatron/base/error.h"
#include "pentatron/comm/backend/mpi/mpi_transport.h"

namespace pentatron::comm::mpi {

bool available() {
  return false;
}

std::unique_ptr<messages::Transport> make_transport() {
  raise<CommError>("this build has no mpi backend\n  try: --backend sockets, or apt-get install "
                   "libopenmpi-dev openmpi-bin, then build with -DPENTATRON_MPI=ON");
}

} // namespace pentatron::comm::mpi
