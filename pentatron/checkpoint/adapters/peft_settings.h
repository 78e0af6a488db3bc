/// What an adapter of Hugging Face's PEFT says of itself: adapter_config.json, and which tensors it
/// has.
///
/// Source: checked against the Python package peft 0.21.2.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "pentatron/base/safetensors.h"
#include "pentatron/checkpoint/adapters/adapter_settings.h"
#include "pentatron/models/model_config.h"

namespace pentatron::checkpoint {

inline constexpr const char* kPeftConfig = "adapter_config.json";
inline constexpr const char* kPeftTensors = "adapter_model.safetensors";

/// The settings of a PEFT folder. Throws DataError if the folder is not a PEFT folder, and
/// ConfigError, naming the fields, for unsupported settings that would change the model's output.
AdapterSettings read_peft_settings(const std::filesystem::path& folder);

/// Before the names of all tensors in the file.
inline constexpr std::string_view kPeftPrefix = "base_model.model.";

/// The tensors of a PEFT folder. Throws DataError if they are pickled.
SafetensorsFile open_peft_tensors(const std::filesystem::path& folder);

/// Whether the adapters of embedding and output layer are one, which PEFT can apply, but trains as
/// two (ensure_weight_tying with both in target_modules).
bool ties_adapters(const std::filesystem::path& folder);

/// PEFT trains a copy of a module. Throws ConfigError unless the folder says that it is also the
/// other module that had the weight.
void check_peft_tying(const std::filesystem::path& folder, const std::string& module);

/// Throws ConfigError if the adapter has trained the output layer of a model whose output layer is
/// its embedding apart from it, and CheckpointError if a module in modules_to_save has no tensors.
void check_saved_modules(const std::filesystem::path& folder, const AdapterSettings& settings,
                         const models::ModelConfig& config, const std::string& family);

} // namespace pentatron::checkpoint
