/// Which Hugging Face tensor is which part of which parameter: one list that serves loading,
/// exporting and converting.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "pentatron/checkpoint/hf/hf_config.h"

namespace pentatron::checkpoint {

/// `hf` [..] is a block of parameter `param`: `shape` elements from `origin`. What the tensor has
/// in another order is undone by as_parameter().
struct WeightMapEntry {
  std::string hf;
  std::string param;
  bool transposed = false; ///< the last two dimensions (GPT-2's Conv1D)
  /// So many equal parts along `parts_dim` of the parameter, whose rows alternate in the tensor.
  int64_t alternating = 1;
  int64_t parts_dim = 0;
  bool buffer = false;         ///< see nn::ParamList
  bool one_of_stack = false;   ///< the tensor lacks the first dimension, which is 1 in `shape`
  std::vector<int64_t> origin; ///< in the parameter
  std::vector<int64_t> shape;  ///< as the parameter has it: not transposed

  /// As the Hugging Face tensor has it.
  std::vector<int64_t> hf_shape() const;
  /// The dimension of the parameter that the rows of the tensor are of.
  size_t row_dim() const { return one_of_stack ? 1 : 0; }
  /// Whether the tensor has its elements in the order of the parameter.
  bool straight() const { return !transposed && alternating == 1; }
  /// Whether the tensor's first dimension is that of the parameter, and its slices are alike.
  bool sliceable() const {
    return straight() || (shape.size() > 2 && !one_of_stack && parts_dim > 0);
  }
};

/// Files have a tensor for each expert; transformers' named_parameters() one for all of a layer;
/// GGUF one for each matrix of all, under names that only stand between it and this list.
enum class HfNames : uint8_t { kFiles, kParameters, kStacks };

/// Tied weights once, in the order of named_parameters(), which has no buffers. The entries of a
/// parameter tile it, in order.
std::vector<WeightMapEntry> weight_map(const HfModel& model, HfNames names = HfNames::kFiles);

/// Copies of tensors that files of the family have, too: their names and those of the originals.
std::vector<std::pair<std::string, std::string>> hf_copies(const HfModel& model);

/// Tensors of older files that are not parameters and are determined by the configuration: causal
/// masks, rotary tables, positions.
bool is_fixed_table(std::string_view hf_name);
/// Those, a second copy of tied weights, and heads of other tasks.
bool is_known_extra(std::string_view hf_name, const HfModel& model);
/// Of such a copy that has to be equal, the tensor that it repeats; empty for other tensors.
std::string original_of(std::string_view hf_name, const HfModel& model);

} // namespace pentatron::checkpoint
