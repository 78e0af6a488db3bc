/// Hugging Face's config.json, read as a ModelConfig by one of families(). What changes the model's
/// numbers is taken over or refused, never ignored.
#pragma once

#include <filesystem>
#include <string>

#include "pentatron/base/json.h"
#include "pentatron/models/model_config.h"

namespace pentatron::checkpoint {

struct HfModel {
  std::string family; ///< model_type
  models::ModelConfig config;
  /// The class that config.json names has no output layer: LlamaModel, T5Model.
  bool without_head = false;
};

/// Throws DataError if it is not the config.json of a model that can be, ConfigError for a family
/// or feature that is not supported. `where` names it in messages.
HfModel parse_hf_config(const Json& json, const std::string& where);
/// config.json of the folder. Throws ConfigError also for a model that transformers does not load.
HfModel read_hf_config(const std::filesystem::path& folder);

} // namespace pentatron::checkpoint
