/// Settings that a run accepts and that change nothing: told once, at its start.
#pragma once

#include <string>
#include <vector>

#include "pentatron/trainer/config.h"

namespace pentatron::trainer {

/// One sentence for each, with what to try. `has_validation`: the data has a part for it.
std::vector<std::string> notices(const Config& config, int world_size, bool has_validation);

} // namespace pentatron::trainer
