/// Which Hugging Face tensor is which part of which parameter, and loading and exporting by that
/// list.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "pentatron/checkpoint/hf/hf_config.h"
#include "pentatron/nn/param.h"

namespace pentatron::checkpoint {

/// `hf` [..] is the part `part` (rows; empty: all) of parameter `param`, transposed if `transposed`
/// (GPT-2's Conv1D).
struct WeightMapEntry {
  std::string hf;
  std::string param;
  std::string part;
  bool transposed = false;
};

/// Under the names of transformers' named_parameters(), tied weights once, in its order.
std::vector<WeightMapEntry> weight_map(const HfModel& model);

/// Fills every parameter from the folder's model*.safetensors. Throws CheckpointError that names
/// missing, left-over and misshapen tensors.
void load_hf_weights(const std::filesystem::path& folder, const HfModel& model,
                     nn::ParamList& params);
/// The same where values are written through a store: `each` calls what it is given for every
/// parameter. Of a pipeline stage's parameters only those are filled that it has.
using EachParam = std::function<void(const std::function<void(nn::Param&)>& fill)>;
void load_hf_weights(const std::filesystem::path& folder, const HfModel& model,
                     nn::ParamList& params, const EachParam& each);

/// Tensors under Hugging Face's names and orientation from `local`, which gives a rank's tensor of
/// a parameter (its value, its gradient). One rank holds everything.
std::map<std::string, at::Tensor>
export_hf(const HfModel& model, nn::ParamList& params,
          const std::function<at::Tensor(const nn::Param&)>& local);

} // namespace pentatron::checkpoint
