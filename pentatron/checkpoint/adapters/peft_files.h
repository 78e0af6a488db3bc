/// Adapters in the files of Hugging Face's PEFT: adapter_config.json and adapter_model.safetensors.
///
/// Source: checked against the Python package peft 0.21.2.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "pentatron/checkpoint/adapters/adapter_modules.h"
#include "pentatron/checkpoint/adapters/adapter_origin.h"

namespace pentatron::checkpoint {

inline constexpr const char* kPeftConfig = "adapter_config.json";
inline constexpr const char* kPeftTensors = "adapter_model.safetensors";

/// The settings of a PEFT folder. Throws DataError if the folder is not a PEFT folder, and
/// ConfigError, naming the fields, for unsupported settings that would change the model's output.
AdapterSettings read_peft_settings(const std::filesystem::path& folder);

/// Whole tensors on the CPU, by the names of our parameters: those of adapters (nn::adapter_name())
/// and those of the model that train with them.
using AdapterTensors = std::map<std::string, at::Tensor>;

/// A weight of the model that PEFT has stored beside its adapter.
struct BaseCopy {
  std::string name; ///< in the file
  std::string param;
  at::Tensor values;
};

struct Adapter {
  AdapterSettings settings;
  std::vector<AdaptedModule> modules;
  std::vector<WholeParam> whole;
  AdapterTensors tensors;
  std::vector<BaseCopy> copies = {};
  AdapterOrigin origin = {};
};

/// What the settings choose of a model, without tensors.
Adapter adapter_parts(const AdapterSettings& settings, const models::ModelConfig& config,
                      const std::string& family, config::Violations& violations,
                      std::string_view path = "peft");

/// Whether the adapters of embedding and output layer are one, which PEFT can apply, but trains as
/// two (ensure_weight_tying with both in target_modules).
bool ties_adapters(const std::filesystem::path& folder);

/// Throws CheckpointError: the copy is not of the model that the adapter belongs to.
[[noreturn]] void refuse_copy(const std::filesystem::path& folder, const BaseCopy& copy);

/// Throws ConfigError if the adapter has trained the output layer of a model whose output layer is
/// its embedding apart from it.
void check_output_layer(const std::filesystem::path& folder, const AdapterSettings& settings,
                        const models::ModelConfig& config);

/// Fills the tensors from a PEFT folder. Throws CheckpointError that lists what is missing,
/// unexpected or has another shape, and ConfigError if the adapter trains one of two copies of a
/// weight that the model has once.
void read_peft_tensors(const std::filesystem::path& folder, Adapter& adapter);

/// Writes both files into an existing folder. `all`: the linear layers of the model; `base_model`
/// and `task`: as PEFT names them, or empty.
void write_peft(const std::filesystem::path& folder, const Adapter& adapter,
                const std::vector<LinearModule>& all, const std::string& base_model,
                const std::string& task);

} // namespace pentatron::checkpoint
