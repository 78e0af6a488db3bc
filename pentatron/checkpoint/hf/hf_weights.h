/// What lies in the parameters of a model, as Hugging Face has it, by weight_map().
#pragma once

#include <functional>
#include <map>
#include <string>

#include <ATen/core/Tensor.h>

#include "pentatron/checkpoint/hf/hf_config.h"
#include "pentatron/nn/param.h"

namespace pentatron::checkpoint {

/// Tensors under Hugging Face's names and orientation from `local`, which gives a rank's tensor of
/// a parameter (its value, its gradient). One rank holds everything.
std::map<std::string, at::Tensor>
hf_tensors(const HfModel& model, nn::ParamList& params,
           const std::function<at::Tensor(const nn::Param&)>& local);

} // namespace pentatron::checkpoint
