/// Evaluates one batch with a model from Hugging Face or a checkpoint: its loss, and the outputs of
/// transformers' forward pass.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "pentatron/checkpoint/model_source.h"
#include "pentatron/trainer/config.h"
#include "pentatron/trainer/evaluation.h"

namespace pentatron::trainer {

struct HfEvaluation {
  std::string model; ///< as checkpoint::open_model() takes it
  /// Safetensors with the arguments of transformers' forward pass, as data::read_batch() takes
  /// them; empty: one sample of `tokens`.
  std::filesystem::path batches;
  std::vector<int32_t> tokens;
  std::filesystem::path logits_out, grads_out, hidden_out; ///< empty: not written
  Precision dtype = Precision::kFp32;
  DeviceKind device = DeviceKind::kAuto;
  int64_t num_threads = 0;

  /// A model without an output layer will do for hidden states alone.
  checkpoint::ModelPurpose purpose() const;
};

/// Whether the model has a loss, of a batch with labels: its output layer is in the files.
bool gives_loss(const checkpoint::ModelSource& source);

/// The model's own loss and the losses of its terms, none without labels or an output layer; NaN as
/// the loss of a model with several terms if one has no target. Writes
/// `logits` [B, S, V] (of sample heads [B, C]) and `seq_relationship_logits` [B, 2] in fp32; hidden
/// states `last_hidden_state` [B, S, H] behind the last norm, `encoder_last_hidden_state` and
/// `pooler_output` [B, H] in fp32, of an fp64 model in fp64; and gradients in the accumulate type
/// under the names and orientation of transformers' named_parameters(), tied weights once. Throws
/// DataError for a batch that does not fit the model.
std::optional<Evaluation> evaluate_hf(const HfEvaluation& options);

} // namespace pentatron::trainer
