/// The parts of dataset.type=classification.
#pragma once

#include "pentatron/data/dataset.h"

namespace pentatron::data {

/// From JSON or Parquet files, which dataset.split cuts, or from files for each part. Labels are
/// classes or numbers, according to the field "labels" of the model. Throws DataError or
/// ConfigError.
Datasets open_classification(const DatasetConfig& config, const DatasetContext& context);

} // namespace pentatron::data
