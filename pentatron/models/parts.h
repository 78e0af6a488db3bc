/// Common parts of the types of models: options of layers, their segments, rotary tables.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "pentatron/layers/transformer_layer.h"
#include "pentatron/models/model.h"
#include "pentatron/parallel/tensor/vocab.h"

namespace pentatron::models {

/// The embedding of tokens, and of a tied output layer.
inline constexpr const char* kWordTable = "embedding.word.weight";
inline constexpr const char* kWordModule = "embedding.word";
/// The output layer: its weight is kOutputWeight, or kWordTable in a model that ties them.
inline constexpr const char* kOutputModule = "output";
inline constexpr const char* kOutputWeight = "output.weight";

/// The first dropout site after those of the layers.
uint32_t site_behind_layers(const ModelConfig& config);
nn::NormOptions norm_options(const ModelConfig& config);
nn::Init embedding_init(const ModelConfig& config);
/// Of self-attention layer `index`: causal, or full in an encoder. Layers behind the last one of a
/// decoder, of multi-token prediction, are of its kind.
layers::TransformerLayerOptions layer_options(const ModelConfig& config, int64_t index);

/// Of layers with experts.
std::vector<AuxiliaryTerm> auxiliary_terms(const ModelConfig& config);

/// Embedding, layers and head in a row, of kinds 0, 1 and 2, with one flow between them.
std::vector<SegmentSpec> stack_of_layers(int64_t layers);

/// Rotary positions of all layers, and of those with a window if theirs differ.
class Rotary {
 public:
  explicit Rotary(const ModelConfig& config);
  std::shared_ptr<const layers::RotaryTable> of_layer(const ModelConfig& config,
                                                      int64_t index) const;
  /// What layers were given is filled.
  void fill(const ModelConfig& config, int64_t max_sequence, at::ScalarType dtype,
            at::Device device);

 private:
  std::shared_ptr<layers::RotaryTable> global_, local_;
};

/// Throws ConfigError if the model has fewer positions.
void require_positions(const ModelConfig& config, int64_t max_sequence);

/// A layer without cross-attention, from a flow to itself.
class LayerSegment final : public nn::Segment {
 public:
  LayerSegment(const nn::Scope& scope, const layers::TransformerLayerOptions& options,
               const parallel::TensorParallel& tp,
               std::shared_ptr<const layers::RotaryTable> rotary,
               const parallel::ExpertParallel& experts = {},
               const parallel::ContextWay& context = {});
  std::string name() const override { return name_; }
  bool recomputable() const override { return true; }
  Output forward(const std::vector<at::Tensor>& taken,
                 const nn::ForwardContext& ctx) const override;

 private:
  std::string name_;
  layers::TransformerLayer layer_;
};

inline constexpr const char* kLmLoss = "lm loss";

struct LmHeadOptions {
  nn::DropoutSite dropout = {}; ///< after the norm
  double scale = 1;             ///< of the hidden states that the output layer reads
  bool norm = true;             ///< else the hidden states have been normalised
  parallel::VocabAdapters adapters = {};
  /// Losses of further flows, which passes have that give them a scale.
  struct Further {
    std::string labels, term;
  };
  std::vector<Further> further = {};
};

/// The last norm and an output layer without bias: each token's prediction, with the loss kLmLoss
/// of the field "labels".
class LmHead final : public nn::Segment {
 public:
  LmHead(const nn::Scope& norm_scope, const ModelConfig& config, nn::Param& weight,
         const parallel::TensorParallel& tp, const LmHeadOptions& options = {});
  std::string name() const override { return "head"; }
  Output forward(const std::vector<at::Tensor>& taken,
                 const nn::ForwardContext& ctx) const override;

 private:
  std::optional<layers::Norm> norm_;
  LmHeadOptions options_;
  parallel::VocabHead head_;
  parallel::TensorParallel tp_;
};

} // namespace pentatron::models
