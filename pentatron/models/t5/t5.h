/// An encoder and a decoder that reads its output: positions by learned biases of attention scores,
/// which all layers of a side share.
///
/// Source: Raffel et al. 2020 (arXiv:1910.10683); Shazeer 2020 (arXiv:2002.05202) for T5 1.1.
#pragma once

#include "pentatron/models/parts.h"

namespace pentatron::models {

class T5 final : public Model {
 public:
  T5(const ModelConfig& config, const ModelBuild& build);
  void finish(at::Device, const std::vector<int64_t>&) override {}

  static ModelSpec spec_of(const ModelConfig& config);
  static nn::Cost segment_cost(const ModelConfig& config, const std::vector<nn::LayerShape>& shapes,
                               int64_t segment);

 private:
  enum class Side : uint8_t { kEncoder, kDecoder };
  /// Of this rank's layers; made for the first of them.
  std::shared_ptr<const layers::RelativeBias> bias(Side side, int64_t segment);
  std::unique_ptr<nn::Segment> make_segment(int64_t segment);

  std::shared_ptr<const layers::RelativeBias> biases_[2];
};

} // namespace pentatron::models
