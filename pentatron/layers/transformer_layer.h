/// One transformer layer: h = x + out(attention(in(x))); y = h + out(mlp(in(h))), where each `in`
/// and `out` is a norm or nothing.
///
/// Shapes: x [T, hidden] -> [T, hidden]. Sources of the placements of norms: Xiong et al. 2020
/// (arXiv:2002.04745) for the input, OLMo 2 (arXiv:2501.00656) for the output, Gemma 2
/// (arXiv:2408.00118) for both.
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
  bool norm_input = true, norm_output = false; ///< of attention and of the MLP; at least one
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
  std::optional<Norm> attention_norm_;
  Attention attention_;
  std::optional<Norm> attention_output_norm_;
  std::optional<Norm> mlp_norm_;
  Mlp mlp_;
  std::optional<Norm> mlp_output_norm_;
};

} // namespace pentatron::layers
