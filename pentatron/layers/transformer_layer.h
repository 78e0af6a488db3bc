/// One pre-norm transformer layer: h = x + attention(norm(x)); y = h + mlp(norm(h)).
///
/// Shapes: x [T, hidden] -> [T, hidden].
#pragma once

#include <optional>

#include "pentatron/layers/attention.h"
#include "pentatron/layers/mlp.h"

namespace pentatron::layers {

/// A norm's parameters and rule.
class Norm {
 public:
  Norm(const nn::Scope& scope, int64_t hidden, const nn::NormOptions& options,
       const parallel::TensorParallel& tp);
  at::Tensor forward(const at::Tensor& x, const nn::ForwardContext& ctx) const;
  /// (x + residual, norm of it)
  std::pair<at::Tensor, at::Tensor> add_forward(const at::Tensor& x, const at::Tensor& residual,
                                                const nn::ForwardContext& ctx) const;

 private:
  nn::NormOptions options_;
  nn::Param* weight_;
  nn::Param* bias_ = nullptr;
};

struct TransformerLayerOptions {
  AttentionOptions attention;
  MlpOptions mlp;
  nn::NormOptions norm;
  double hidden_dropout = 0;
  uint32_t dropout_site = 0; ///< of the attention branch; the MLP branch has the next number
};

class TransformerLayer {
 public:
  TransformerLayer(const nn::Scope& scope, const TransformerLayerOptions& options,
                   parallel::TensorParallel tp, std::shared_ptr<const RotaryTable> rotary);
  at::Tensor forward(const at::Tensor& x, const nn::ForwardContext& ctx) const;
  static nn::Cost cost(const TransformerLayerOptions& options, const nn::LayerShape& shape);

 private:
  TransformerLayerOptions options_;
  Norm attention_norm_;
  Attention attention_;
  Norm mlp_norm_;
  Mlp mlp_;
};

} // namespace pentatron::layers
