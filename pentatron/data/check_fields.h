/// Whether a type of dataset gives what a model reads, known before any file is read.
#pragma once

#include <vector>

#include "pentatron/data/config.h"
#include "pentatron/data/field.h"

namespace pentatron::data {

/// What a dataset of this configuration gives. dataset.type=batches gives whatever its file has
/// and is taken to give `wanted`.
std::vector<BatchField> given_fields(const DatasetConfig& config,
                                     const std::vector<BatchField>& wanted);

/// Throws ConfigError for a field of `wanted` that the dataset does not give, with the settings of
/// a dataset that gives all of them.
void check_fields(const DatasetConfig& config, const std::vector<BatchField>& wanted);

} // namespace pentatron::data
