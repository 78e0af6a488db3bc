/// Names that other programs use for configuration keys: transformers, PEFT, PyTorch, TorchTitan,
/// NeMo.
#pragma once

#include <span>
#include <string_view>

namespace pentatron::config {

struct CommonName {
  std::string_view section; ///< empty: any, or none
  std::string_view name;
  /// As MegatronName::setting, or the command-line option to use instead: "--ranks RANKS".
  std::string_view setting;
};
std::span<const CommonName> common_names();

/// The settings that mean what a name of other programs says as the value of a key:
/// model.type=bert and others for roberta as model.type. Empty if it is no such name.
std::string_view settings_of_common_value(std::string_view path, std::string_view value);

/// The setting for a path as typed, "peft.r" for "lora_rank"; empty if there is none. Names of the
/// typed section come before those of any.
std::string_view setting_of_common_name(std::string_view typed);

} // namespace pentatron::config
