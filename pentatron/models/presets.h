/// Named models as data.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "pentatron/models/model_config.h"

namespace pentatron::models {

/// The config of a named model. Throws ConfigError with the nearest name.
ModelConfig preset(std::string_view name);

/// All names, in the order of the pages.
std::vector<std::string> preset_names();

} // namespace pentatron::models
