/// Multi-token prediction: layers after the last one that predict tokens further ahead.
///
/// Depth d = 1, 2, ... reads the hidden states h_{d-1} of the depth before (h_0: behind the final
/// norm of the model) and the embedding of the token d places further on:
///   h_d = norm(layer(M [enorm(embedding(id[i + d])) | hnorm(h_{d-1}[i])]))
/// and its loss is that of the model's output layer on h_d for the token behind that one.
/// Source: DeepSeek-AI 2024 (arXiv:2412.19437) sec. 2.2.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "pentatron/models/gpt/token_embedding.h"
#include "pentatron/models/parts.h"

namespace pentatron::models {

/// "mtp_1 loss" of depth 1.
std::string mtp_term(int64_t depth);
/// The field of its labels.
std::string mtp_labels(int64_t depth);
/// What training derives from a sample for it.
std::vector<data::ShiftedField> mtp_fields(const ModelConfig& config);

/// One depth. The first one begins with the final norm of the model, whose output is its first
/// flow. In a pass without the depth's loss term nothing else is computed.
class MtpSegment final : public nn::Segment {
 public:
  struct Parts {
    std::optional<layers::Norm> final_norm; ///< of the model
    TokenEmbedding embedding;
    parallel::ExpertParallel experts;
    parallel::ContextWay context;
  };
  MtpSegment(const nn::Scope& scope, const ModelConfig& config, int64_t depth, Parts parts,
             const parallel::TensorParallel& tp, std::shared_ptr<const layers::RotaryTable> rotary);
  std::string name() const override { return name_; }
  bool recomputable() const override { return true; }
  Output forward(const std::vector<at::Tensor>& taken,
                 const nn::ForwardContext& ctx) const override;
  static nn::Cost cost(const ModelConfig& config, int64_t depth, const nn::LayerShape& shape);

 private:
  std::string name_, ids_, places_; ///< of fields; no `places_` without learned positions
  std::string term_;
  uint32_t site_;
  std::optional<layers::Norm> final_norm_;
  TokenEmbedding embedding_;
  layers::Norm embedding_norm_, hidden_norm_;
  nn::Param* projection_;
  layers::TransformerLayer layer_;
  layers::Norm norm_;
};

} // namespace pentatron::models
