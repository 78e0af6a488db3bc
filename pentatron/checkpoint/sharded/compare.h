/// What a checkpoint holds, and how two differ.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "pentatron/base/json.h"
#include "pentatron/checkpoint/sharded/reader.h"

namespace pentatron::checkpoint {

/// Iteration, state, number and bytes of tensors (by dtype too), and for every tensor and file its
/// shape, dtype, bytes and number of pieces. Reads nothing but the manifest.
Json inspect(const Manifest& manifest);

/// A tensor that is not the same in both.
struct TensorDifference {
  enum class Kind : uint8_t { kOnlyInFirst, kOnlyInSecond, kTypeOrShape, kValues };
  std::string name;
  Kind kind = Kind::kValues;
  int64_t elements = 0;       ///< whose bits differ
  double max_difference = 0;  ///< |a - b|; NaN if one is NaN
  double max_magnitude = 0;   ///< of the first tensor's values that differ
  std::vector<int64_t> where; ///< the element with max_difference
};

struct CheckpointDifference {
  int64_t tensors = 0, equal = 0;          ///< in both; in both and equal in every bit
  std::vector<TensorDifference> different; ///< by name
  std::vector<std::string> state;          ///< members of the state that differ
  std::vector<std::string> attachments;    ///< not the same in both, by name
  /// Keys in which the configurations of the runs differ, without the folders they write to.
  std::vector<std::string> config;
  bool tokenizer_equal = true;
  bool same() const {
    return different.empty() && state.empty() && attachments.empty() && config.empty() &&
           tokenizer_equal;
  }
};

/// Reads both in pieces of bounded size; the layouts in which they were written do not matter.
CheckpointDifference diff(CheckpointReader& first, CheckpointReader& second);
/// A line each.
std::string to_text(const CheckpointDifference& difference);

} // namespace pentatron::checkpoint
