/// A ModelConfig as Hugging Face's config.json: the inverse of parse_hf_config().
#pragma once

#include <optional>
#include <string>

#include "pentatron/base/json.h"
#include "pentatron/base/safetensors.h"
#include "pentatron/checkpoint/generation_defaults.h"
#include "pentatron/models/model_config.h"

namespace pentatron::checkpoint {

struct HfExport {
  std::string family;
  Json config;
};

/// The config.json of the first family that expresses everything which changes the model's numbers:
/// `preferred` if it does, else in the order of families(). Dropout beyond what the family
/// has, and how weights were initialised, are left out; a family that transformers would not load
/// is passed over. Throws ConfigError that names the keys which no family can express; its `try:`,
/// if it has one, is the settings of the closest family.
HfExport make_hf_config(const models::ModelConfig& config, const std::string& preferred = {});

/// Adds keys that do not describe the architecture: token ids and the type of the weights.
void add_hf_details(Json& config, const GenerationDefaults& generation, SafeDtype dtype);

/// "float32", as torch spells it.
std::string torch_name_of(SafeDtype dtype);

/// Whether both are the same model: same parameters, same numbers from them.
bool same_model(const models::ModelConfig& a, const models::ModelConfig& b);

} // namespace pentatron::checkpoint
