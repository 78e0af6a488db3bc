/// The processes that a launcher has started, for the tests that run on them.
#pragma once

#include "pentatron/comm/process_world.h"

namespace pentatron::test {

comm::ProcessWorld& processes();

} // namespace pentatron::test
