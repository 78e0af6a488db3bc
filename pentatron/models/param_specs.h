/// The parameters of a model as data: what a model without storage registers.
#pragma once

#include <functional>
#include <map>
#include <string>

#include "pentatron/models/model_config.h"
#include "pentatron/nn/shard_spec.h"

namespace pentatron::models {

/// Every parameter over all pipeline stages, by name, with its true global shape. Throws
/// ConfigError for a configuration that is not one of a model.
using ParamSpecs = std::map<std::string, nn::ShardSpec, std::less<>>;
ParamSpecs param_specs(const ModelConfig& config);
/// The same of its buffers, and of both: what files of the model hold.
ParamSpecs buffer_specs(const ModelConfig& config);
ParamSpecs tensor_specs(const ModelConfig& config);

} // namespace pentatron::models
