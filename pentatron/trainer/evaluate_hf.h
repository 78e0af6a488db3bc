/// A trained model on one batch: loss, logits and gradients, to compare with other systems.
#pragma once

#include <filesystem>
#include <string>

#include "pentatron/trainer/config.h"

namespace pentatron::trainer {

struct HfEvaluation {
  std::string model;                           ///< as checkpoint::open_model() takes it
  std::filesystem::path batches;               ///< Safetensors with `input_ids` [B, S] int64
  std::filesystem::path logits_out, grads_out; ///< empty: not written
  Precision dtype = Precision::kFp32;
  DeviceKind device = DeviceKind::kAuto;
  int64_t num_threads = 0;
};

/// Mean next-token cross-entropy over the B (S - 1) targets. Writes `logits` [B, S, V] fp32, and
/// gradients in the accumulate type under the names and orientation of transformers'
/// named_parameters(), tied weights once. Throws DataError if `input_ids` is missing, of another
/// type or shape, or holds an id outside the vocabulary.
double evaluate_hf(const HfEvaluation& options);

} // namespace pentatron::trainer
