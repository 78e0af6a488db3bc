/// A decoder-only transformer as a list of segments: embedding, layers, head.
///
/// Source: Radford et al. 2019 (GPT-2); Touvron et al. 2023 (arXiv:2302.13971).
#pragma once

#include <memory>

#include "pentatron/layers/transformer_layer.h"
#include "pentatron/models/model.h"

namespace pentatron::models {

class Gpt final : public Model {
 public:
  Gpt(const ModelConfig& config, const ModelBuild& build);
  void finish(at::Device device, const std::vector<int64_t>& longest) override;

  static ModelSpec spec_of(const ModelConfig& config);
  static nn::Cost segment_cost(const ModelConfig& config, const std::vector<nn::LayerShape>& shapes,
                               int64_t segment);

 private:
  /// Of all layers, and of those with a window if theirs differs.
  std::shared_ptr<layers::RotaryTable> rotary_, local_rotary_;
};

/// Options of layer `index`, as the config gives them.
layers::TransformerLayerOptions layer_options(const ModelConfig& config, int64_t index);

} // namespace pentatron::models
