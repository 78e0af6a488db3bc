/// The parts of dataset.type=indexed.
#pragma once

#include "pentatron/data/dataset.h"

namespace pentatron::data {

/// Opens the corpora and their blends for training, validation and test, in the order that
/// `config.order` says, and fills what `about` says of them. Throws DataError or ConfigError.
TokenDatasets open_indexed(const DatasetConfig& config, const DatasetContext& context,
                           Datasets& about);

} // namespace pentatron::data
