/// What the path keys of dataset.type=indexed name, for each part.
#pragma once

#include <array>
#include <optional>

#include "pentatron/data/config.h"
#include "pentatron/data/gpt/blend.h"

namespace pentatron::data {

struct DataPaths {
  /// Of all parts, which dataset.split cuts.
  std::optional<Blend> shared;
  /// Of training, validation and test each, if not shared.
  std::array<std::optional<Blend>, 3> parts;
};

/// Reads the configured lists and files of lists (.json, .yaml, or words). Throws ConfigError for
/// an invalid list and DataError for a file that cannot be read.
DataPaths find_data_paths(const DatasetConfig& config);

/// Whether the keys name corpora (PREFIX.bin and PREFIX.idx) and not files of text.
bool names_corpora(const DatasetConfig& config);

} // namespace pentatron::data
