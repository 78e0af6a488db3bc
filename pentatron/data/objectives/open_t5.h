/// The parts of dataset.type=t5.
#pragma once

#include "pentatron/data/dataset.h"

namespace pentatron::data {

/// The spans are taken out of the tokens that dataset.type=indexed or text would give. Throws
/// DataError or ConfigError.
Datasets open_t5(const DatasetConfig& config, const DatasetContext& context);

/// Of the targets that belong to inputs of `input_length`.
int64_t t5_target_length(const DatasetConfig& config, int64_t input_length);

} // namespace pentatron::data
