/// Hugging Face's config.json of the GPT family, read as a GptConfig.
///
/// Families: gpt2, llama, mistral, qwen2, qwen3. What changes the model's numbers is taken over or
/// refused, never ignored.
#pragma once

#include <filesystem>
#include <string>

#include "pentatron/models/gpt_config.h"

namespace pentatron::checkpoint {

struct HfModel {
  std::string family; ///< model_type
  models::GptConfig config;
};

/// Throws DataError if the file cannot be read or is damaged, ConfigError for a family or feature
/// that is not supported.
HfModel read_hf_config(const std::filesystem::path& folder);

} // namespace pentatron::checkpoint
