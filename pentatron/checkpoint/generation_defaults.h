/// The tokens at which a model's texts begin and end.
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
};

/// Of generation_config.json, and what that leaves open of config.json. Throws DataError if one is
/// damaged.
GenerationDefaults generation_defaults(const std::filesystem::path& folder);
/// Of one such file.
GenerationDefaults generation_defaults(const Json& json, const std::string& where);

} // namespace pentatron::checkpoint
