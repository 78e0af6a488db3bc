/// The parameters of a model as data, without a model: names and true global shapes.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "pentatron/models/gpt_config.h"

namespace pentatron::checkpoint {

using Shapes = std::map<std::string, std::vector<int64_t>, std::less<>>;

/// Every parameter that models::Gpt registers for this configuration over all pipeline stages.
Shapes param_shapes(const models::GptConfig& config);

} // namespace pentatron::checkpoint
