/// What train.cuda_graphs needs of the rest of a configuration.
#pragma once

#include "pentatron/config/violations.h"

namespace pentatron::trainer {

struct Config;

/// Adds a violation for each setting under which layers cannot run as CUDA graphs: those whose
/// kernels or addresses differ from step to step, and those that exchange numbers with the host or
/// with other ranks inside of layers.
void check_graphs(const Config& config, config::Violations& violations);

} // namespace pentatron::trainer
