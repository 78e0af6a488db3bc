/// The linear layers and word tables of a model under the names by which adapters are chosen and
/// stored.
#pragma once

#include <string>
#include <vector>

#include "pentatron/checkpoint/adapters/adapter_settings.h"
#include "pentatron/checkpoint/adapters/whole_modules.h"
#include "pentatron/models/model_config.h"
#include "pentatron/nn/adapter.h"
#include "pentatron/nn/shard_spec.h"

namespace pentatron::checkpoint {

/// A linear layer as Hugging Face has it: all of a weight of ours, or some of its parts. Also the
/// embedding.
struct LinearModule {
  std::string hf;       ///< "model.layers.0.self_attn.q_proj"
  std::string own;      ///< "layers.0.attention.qkv"
  std::string own_part; ///< "layers.0.attention.qkv.q"
  std::string weight;   ///< our parameter, or the name of an output layer that is the word table
  std::string values;   ///< the parameter with its values
  std::string part;     ///< nn::AdaptedPart::name
  size_t first = 0, count = 1;
  int64_t first_row = 0, rows = 0, columns = 0; ///< of our parameter
  nn::AdaptedUse use = nn::AdaptedUse::kLinear; ///< all-linear has those alone
  bool router = false;     ///< one of them, and a parameter of `hf`, not a linear layer there
  int64_t experts = 0;     ///< 0: one matrix, else so many, which are one parameter of `hf`
  int64_t alternating = 1; ///< see WeightMapEntry
};

/// All that take adapters, by weight and row. `family`: of the Hugging Face model that it came
/// from, if any. A model that no Hugging Face family can hold has our names of parts alone.
std::vector<LinearModule> linear_modules(const models::ModelConfig& config,
                                         const std::string& family = {});

/// A linear layer with its adapter.
struct AdaptedModule {
  LinearModule module;
  int64_t rank = 0;
  double alpha = 0, scale = 0;
  int64_t first = 0; ///< its rows of the weight's lora_A
};

/// "q_proj" of "model.layers.0.self_attn.q_proj".
std::string last_of(const std::string& name);
/// Whether a name of a setting matches that of a module, complete or its end after a dot.
bool matches_module(const std::string& pattern, const std::string& name);
/// The same of the module or of one that contains it, as modules_to_save is meant.
bool matches_within(const std::string& pattern, const std::string& name);

/// What the settings choose, except modules that train whole (`whole`: their parameters), and why
/// they cannot be met (sentences for `peft.target_modules` and the patterns).
std::vector<AdaptedModule> adapted_modules(const std::vector<LinearModule>& modules,
                                           const AdapterSettings& settings,
                                           const std::vector<WholeParam>& whole,
                                           config::Violations& violations,
                                           std::string_view path = "peft");

nn::AdapterPlan adapter_plan(const std::vector<AdaptedModule>& modules,
                             const AdapterSettings& settings,
                             const std::vector<WholeParam>& whole = {});

} // namespace pentatron::checkpoint
