/// A decoder-only transformer as a list of segments: embedding, layers, depths of multi-token
/// prediction, head.
///
/// Source: Radford et al. 2019 (GPT-2); Touvron et al. 2023 (arXiv:2302.13971).
#pragma once

#include "pentatron/models/gpt/multi_token.h"
#include "pentatron/models/parts.h"

namespace pentatron::models {

class Gpt final : public Model {
 public:
  Gpt(const ModelConfig& config, const ModelBuild& build);
  void finish(at::Device device, const std::vector<int64_t>& longest) override;

  static ModelSpec spec_of(const ModelConfig& config);
  static nn::Cost segment_cost(const ModelConfig& config, const std::vector<nn::LayerShape>& shapes,
                               int64_t segment);

 private:
  TokenEmbedding make_embedding(int64_t segment);
  /// Of multi-token prediction.
  std::unique_ptr<nn::Segment> make_depth(int64_t segment);
  std::unique_ptr<nn::Segment> make_head(int64_t segment);

  Rotary rotary_;
};

} // namespace pentatron::models
