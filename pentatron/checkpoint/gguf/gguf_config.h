/// Between the metadata of a GGUF file and Hugging Face's config.json.
///
/// What changes the numbers is taken over or is a problem, never ignored. Problems are added to a
/// list, so that all of them are told at once.
#pragma once

#include <string>
#include <vector>

#include "pentatron/base/gguf.h"
#include "pentatron/base/json.h"
#include "pentatron/checkpoint/gguf/structure.h"

namespace pentatron::checkpoint {

using Problems = std::vector<std::string>;

struct GgufConfig {
  GgufStructure structure;
  Json hf;
};
/// Throws DataError if a value is missing or of the wrong type, ConfigError for an architecture
/// that is not known. The structure is to be used only if there are no problems.
GgufConfig config_from_gguf(const GgufFile& file, Problems& problems);

struct GgufHead {
  GgufStructure structure;
  GgufMetadata metadata; ///< <architecture>.*
  std::vector<float> rope_freqs;
};
/// Throws ConfigError for a family that is not known, DataError for values of the wrong type.
GgufHead config_to_gguf(const Json& hf, Problems& problems);

} // namespace pentatron::checkpoint
