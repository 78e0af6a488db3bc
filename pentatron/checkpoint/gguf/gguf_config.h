/// Between the metadata of a GGUF file and Hugging Face's config.json.
///
/// Settings that change the model's output are either converted or reported as problems, never
/// ignored. Problems are collected in a list, so that all of them are reported at once.
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
/// Throws DataError if a value is missing or of the wrong type, ConfigError for an unknown
/// architecture. Use the structure only if there are no problems.
GgufConfig config_from_gguf(const GgufFile& file, Problems& problems);

/// What the config.json of every family but GPT-2 says in equal words: the family, layers and
/// sizes.
void put_sizes(const GgufFamily& family, const GgufStructure& structure, Json& hf);

struct GgufHead {
  GgufStructure structure;
  GgufMetadata metadata; ///< <architecture>.*
  /// Divisors of rotary frequencies, by the names of their tensors.
  std::vector<std::pair<const char*, std::vector<float>>> divisors;
};
/// Throws ConfigError for a family that is not known, DataError for values of the wrong type.
GgufHead config_to_gguf(const Json& hf, Problems& problems);

} // namespace pentatron::checkpoint
