/// A decoder-only transformer as a list of segments: embedding, layers, head.
///
/// Source: Radford et al. 2019 (GPT-2); Touvron et al. 2023 (arXiv:2302.13971).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "pentatron/base/segment_range.h"
#include "pentatron/layers/transformer_layer.h"
#include "pentatron/models/gpt_config.h"
#include "pentatron/nn/segment.h"
#include "pentatron/parallel/tensor/vocab.h"

namespace pentatron::models {

struct GptBuild {
  at::ScalarType dtype = at::kFloat;
  parallel::TensorParallel tp;
  bool recompute = false;
  std::vector<SegmentRange> stages; ///< that this rank holds, ascending; empty: the whole model
};

/// A parameter that several segments read, which may lie on different pipeline ranks.
struct SharedParam {
  std::string name;
  std::vector<int64_t> segments; ///< ascending
};

class Gpt {
 public:
  /// Registers the parameters; they get storage from a ParamStore, and values from initialize() or
  /// a checkpoint. Throws ConfigError if a size does not divide over tp.
  Gpt(const GptConfig& config, const GptBuild& build);
  Gpt(const Gpt&) = delete;

  nn::ParamList& params() { return params_; }
  const GptConfig& config() const { return config_; }
  at::ScalarType dtype() const { return build_.dtype; }
  const parallel::TensorParallel& tensor_parallel() const { return build_.tp; }

  /// Builds what lives beside the parameters on their device, for sequences of up to `max_sequence`
  /// tokens. Throws ConfigError if the model has fewer positions.
  void finish(at::Device device, int64_t max_sequence);
  void initialize(uint64_t seed);

  /// One for each stage that this rank holds. The first stage of the model takes ids [T], the last
  /// gives the scaled loss of ctx.labels (scalar); between stages go hidden states [T, hidden]
  /// (under sequence parallel [T / t, hidden]).
  const std::vector<nn::Chunk>& chunks() const { return chunks_; }
  /// Of a rank that holds the whole model in one stage: ids [T] -> the scaled loss.
  const nn::Chunk& loss_chunk() const;

  /// Stage `chunk` of this rank without a tape: ids [T] or hidden states in; out hidden states, or
  /// of the last stage logits [R, V] of tokens `rows` [R] (undefined: all) in the accumulate type.
  at::Tensor infer(size_t chunk, const at::Tensor& x, nn::ForwardContext& ctx,
                   nn::ParamStore& store, const at::Tensor& rows = {}) const;
  /// ids [T] -> logits [T, V], where this rank holds the whole model.
  at::Tensor logits(const at::Tensor& ids, nn::ForwardContext& ctx, nn::ParamStore& store) const;

  static std::vector<SharedParam> shared_params(const GptConfig& config);

  /// Of one microbatch on this rank. Head and embedding included.
  static nn::Cost cost(const GptConfig& config, const nn::LayerShape& shape);
  /// One segment: 0 is the embedding, then the layers, then the head.
  static nn::Cost segment_cost(const GptConfig& config, const nn::LayerShape& shape,
                               int64_t segment);

 private:
  GptConfig config_;
  GptBuild build_;
  nn::ParamList params_;
  /// Of all layers, and of those with a window if theirs differs.
  std::shared_ptr<layers::RotaryTable> rotary_, local_rotary_;
  std::vector<nn::Chunk> chunks_;
};

/// Options of layer `index`, as the config gives them.
layers::TransformerLayerOptions layer_options(const GptConfig& config, int64_t index);

} // namespace pentatron::models
