/// An encoder: embedding, layers that see the whole sequence, and a head that restores masked
/// tokens, predicts the relation of two texts, or predicts a value for the whole sample.
///
/// Source: Devlin et al. 2019 (arXiv:1810.04805); Liu et al. 2019 (arXiv:1907.11692) for RoBERTa;
/// Lan et al. 2020 (arXiv:1909.11942) for sentence order.
#pragma once

#include "pentatron/models/parts.h"

namespace pentatron::models {

class Bert final : public Model {
 public:
  Bert(const ModelConfig& config, const ModelBuild& build);
  void finish(at::Device device, const std::vector<int64_t>& longest) override;

  static ModelSpec spec_of(const ModelConfig& config);
  static nn::Cost segment_cost(const ModelConfig& config, const std::vector<nn::LayerShape>& shapes,
                               int64_t segment);

 private:
  std::unique_ptr<nn::Segment> make_embedding();
  std::unique_ptr<nn::Segment> make_head();

  Rotary rotary_;
};

} // namespace pentatron::models
