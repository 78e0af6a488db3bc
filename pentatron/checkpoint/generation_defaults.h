/// What a model's files say about text generation: the tokens at which texts begin and end.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "pentatron/base/json.h"

namespace pentatron::checkpoint {

struct GenerationDefaults {
  std::vector<int64_t> eos; ///< each ends a text
  std::optional<int64_t> bos, pad;
  /// Settings of generation_config.json that change what Hugging Face's generate() writes and are
  /// not used here, "no_repeat_ngram_size=3". What the options of a command set is not among them,
  /// but for the penalty, which few expect in a file.
  std::vector<std::string> unused = {};
};

/// Of generation_config.json, and what that leaves open of config.json. Throws DataError if one is
/// damaged.
GenerationDefaults generation_defaults(const std::filesystem::path& folder);
/// Of one such file.
GenerationDefaults generation_defaults(const Json& json, const std::string& where);

} // namespace pentatron::checkpoint
