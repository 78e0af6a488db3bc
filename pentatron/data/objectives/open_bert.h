/// The parts of dataset.type=bert.
#pragma once

#include "pentatron/data/dataset.h"

namespace pentatron::data {

/// From corpora whose sequences are sentences, and their blends, or from text that
/// split_sentences() cuts. Throws DataError or ConfigError.
Datasets open_bert(const DatasetConfig& config, const DatasetContext& context);

} // namespace pentatron::data
