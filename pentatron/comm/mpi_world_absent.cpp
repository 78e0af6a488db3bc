#include "pentatron/comm/mpi_world.h"

#include "pentatron/base/error.h"

namespace pentatron::comm {

// Compiled in place of backend/mpi where MPI is not: no MpiWorld can exist.
struct MpiWorld::Impl {};

bool mpi_available() {
  return false;
}

MpiWorld::MpiWorld(const MpiOptions&) {
  raise<CommError>("the mpi backend is not in this build\n  try: apt-get install libopenmpi-dev "
                   "openmpi-bin, then build with -DPENTATRON_MPI=ON");
}

MpiWorld::~MpiWorld() = default;

int MpiWorld::rank() const {
  return 0;
}

int MpiWorld::size() const {
  return 1;
}

void MpiWorld::run(const std::function<void(Group world)>&) {}

} // namespace pentatron::comm
