/// Suggestions if experts receive no tokens.
#pragma once

#include <string>

#include "pentatron/models/model_config.h"

namespace pentatron::trainer {

/// The next way to balance experts that the run does not use.
std::string remedy_of_dead_experts(const models::ModelConfig& model);

} // namespace pentatron::trainer
