/// Which parameters a run trains, and by which rule: train.freeze and the optimizer's section, as
/// families of parameters.
#pragma once

#include <string>
#include <vector>

#include "pentatron/nn/param_store.h"
#include "pentatron/trainer/config.h"

namespace pentatron::trainer {

/// Whether one of the patterns matches the whole name (matches_pattern).
bool is_frozen(const std::vector<std::string>& freeze, const std::string& name);

/// Whether a run updates the parameter or buffer: with adapters these alone, else what is not
/// frozen.
bool trains(const Config& config, const nn::Param& param);

/// Whether a run holds the parameter in 8 bits (peft.base_dtype): the frozen weights of linear
/// layers and of experts.
bool is_int8(const Config& config, const nn::Param& param);

/// Adds a violation for a pattern that matches no parameter of the model, with similar ones, and
/// where nothing is left to train.
void check_freeze(const TrainConfig& train, const models::ModelConfig& model,
                  config::Violations& violations);

/// Adds a violation for a pattern of optimizer.param_groups that matches no parameter of the model.
void check_param_group_patterns(const std::vector<std::string>& groups,
                                const models::ModelConfig& model, config::Violations& violations);

/// Sets the family of every parameter, and how its products on `device` are computed (precision.h);
/// before they have storage.
void plan_families(nn::ParamList& params, const Config& config, at::Device device);

/// "this rank updates 1000 elements in 2 parts", of what a store owns.
std::string describe_updates(const std::vector<nn::Shard>& shards);

} // namespace pentatron::trainer
