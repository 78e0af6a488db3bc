/// Modules that train whole beside adapters: PEFT's modules_to_save.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "pentatron/checkpoint/adapters/adapter_settings.h"
#include "pentatron/checkpoint/hf/weight_map.h"
#include "pentatron/models/model_config.h"

namespace pentatron::checkpoint {

/// A parameter with all tensors that it is under Hugging Face's names, or the one of its own name
/// if no Hugging Face family can hold the model.
struct WholeParam {
  std::string name;
  std::vector<int64_t> shape;
  std::vector<WeightMapEntry> tensors;
  bool tied = false;   ///< the embedding is the output layer, too
  bool shared = false; ///< encoder and decoder read it, under one name
};

/// What settings.modules_to_save chooses, by name, and why it cannot be met (sentences for that
/// key). `family`: of the Hugging Face model that it came from, if any.
std::vector<WholeParam> whole_params(const models::ModelConfig& config, const std::string& family,
                                     const AdapterSettings& settings,
                                     config::Violations& violations,
                                     std::string_view path = "peft");

/// The modules of these parameters under Hugging Face's names, without repetitions and without
/// those within others of them.
std::vector<std::string> names_of_modules(const std::vector<WholeParam>& params);

/// All modules with parameters, under Hugging Face's names, whatever trains.
std::vector<std::string> names_of_all_modules(const models::ModelConfig& config,
                                              const std::string& family);

/// "model.norm" of "model.norm.weight".
std::string module_of_tensor(const std::string& name);

} // namespace pentatron::checkpoint
