/// Which Hugging Face tensor is which part of which parameter: one list that serves loading,
/// exporting and converting.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "pentatron/checkpoint/hf/hf_config.h"

namespace pentatron::checkpoint {

/// `hf` [..] is the part `part` (rows; empty: all) of parameter `param`, transposed if `transposed`
/// (GPT-2's Conv1D).
struct WeightMapEntry {
  std::string hf;
  std::string param;
  std::string part;
  bool transposed = false;
  int64_t begin = 0;          ///< first row of the part in the parameter
  std::vector<int64_t> shape; ///< of the part, as the parameter has it: not transposed

  /// As the Hugging Face tensor has it.
  std::vector<int64_t> hf_shape() const;
};

/// Under the names of transformers' named_parameters(), tied weights once, in its order. The
/// entries of a parameter tile it, in order of `begin`.
std::vector<WeightMapEntry> weight_map(const HfModel& model);

/// Tensors of older files that are no parameters: causal masks, rotary tables, a second copy of
/// tied weights.
bool is_known_extra(std::string_view hf_name, const HfModel& model);
/// Of such a copy that has to be equal, the tensor that it repeats; empty for other tensors.
std::string original_of(std::string_view hf_name, const HfModel& model);

} // namespace pentatron::checkpoint
