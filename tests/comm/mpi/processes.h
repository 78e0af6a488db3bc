/// The processes that mpirun has started, for the tests that run on them.
#pragma once

#include "pentatron/comm/mpi_world.h"

namespace pentatron::test {

comm::MpiWorld& processes();

} // namespace pentatron::test
