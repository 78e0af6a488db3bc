/// Loading the parameters of a rank from a Hugging Face folder, and exporting them, by
/// weight_map().
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "pentatron/checkpoint/hf/hf_config.h"
#include "pentatron/checkpoint/hf/weight_map.h"
#include "pentatron/checkpoint/model_source.h"
#include "pentatron/nn/param.h"

namespace pentatron::checkpoint {

/// Fills every parameter from the folder's model*.safetensors. Throws CheckpointError that lists
/// all missing, left-over and misshapen tensors.
void load_hf_weights(const std::filesystem::path& folder, const HfModel& model,
                     nn::ParamList& params);
/// The same where values are written through a store: `each` calls what it is given for every
/// parameter. Of a pipeline stage's parameters only those are filled that it has.
void load_hf_weights(const std::filesystem::path& folder, const HfModel& model,
                     nn::ParamList& params, const EachParam& each);

/// Tensors under Hugging Face's names and orientation from `local`, which gives a rank's tensor of
/// a parameter (its value, its gradient). One rank holds everything.
std::map<std::string, at::Tensor>
export_hf(const HfModel& model, nn::ParamList& params,
          const std::function<at::Tensor(const nn::Param&)>& local);

} // namespace pentatron::checkpoint
