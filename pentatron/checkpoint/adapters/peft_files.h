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
#include "pentatron/checkpoint/adapters/peft_settings.h"

namespace pentatron::checkpoint {

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
  std::vector<LinearModule> tables; ///< embedding and output layer of the model
  AdapterTensors tensors;
  std::vector<BaseCopy> copies = {};
  AdapterOrigin origin = {};
};

/// What the settings choose of a model, without tensors.
Adapter adapter_parts(const AdapterSettings& settings, const models::ModelConfig& config,
                      const std::string& family, config::Violations& violations,
                      std::string_view path = "peft");

/// Throws CheckpointError: the copy is not of the model that the adapter belongs to.
[[noreturn]] void refuse_copy(const std::filesystem::path& folder, const BaseCopy& copy);

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
