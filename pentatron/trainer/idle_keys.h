/// Keys that were given, but belong to a feature that the run does not use.
#pragma once

#include <string>
#include <vector>

#include "pentatron/trainer/config.h"

namespace pentatron::trainer {

/// One sentence for each key whose value differs from the default, with what to try.
std::vector<std::string> idle_keys(const Config& config, int world_size);

} // namespace pentatron::trainer
