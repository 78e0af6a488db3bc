/// One transformer layer: branches h = residual(h + dropout(out(branch(in(h))))), where each `in`,
/// `out` and `residual` is a norm or nothing: attention, cross-attention of a decoder, MLP.
///
/// Shapes: x [T, hidden] -> [T, hidden]. Sources of the placements of norms: Xiong et al. 2020
/// (arXiv:2002.04745) for the input, OLMo 2 (arXiv:2501.00656) for the output, Gemma 2
/// (arXiv:2408.00118) for both, Vaswani et al. 2017 (arXiv:1706.03762) for the residual sum.
#pragma once

#include <optional>
#include <string>
#include <variant>

#include "pentatron/layers/attention.h"
#include "pentatron/layers/cross_attention.h"
#include "pentatron/layers/latent_attention.h"
#include "pentatron/layers/mlp.h"
#include "pentatron/layers/moe.h"
#include "pentatron/layers/norm.h"

namespace pentatron::layers {

struct TransformerLayerOptions {
  AttentionOptions attention;
  std::optional<CrossAttentionOptions> cross; ///< between attention and MLP
  MlpOptions mlp;
  std::optional<MoeOptions> moe; ///< instead of the MLP
  nn::NormOptions norm;
  bool norm_input = true, norm_output = false; ///< of every branch; at least one norm
  bool norm_residual = false;                  ///< after every sum (post-norm)
  double hidden_dropout = 0;                   ///< of every branch's output
  uint32_t dropout_site = 0;       ///< of the attention branch; the MLP branch has the next number
  uint32_t cross_dropout_site = 0; ///< of the cross-attention branch
};

/// Attention of tokens to tokens of their own stream.
class SelfAttention {
 public:
  SelfAttention(const nn::Scope& scope, const AttentionOptions& options,
                const parallel::TensorParallel& tp, std::shared_ptr<const RotaryTable> rotary,
                std::shared_ptr<const RelativeBias> bias, const parallel::ContextWay& context);
  at::Tensor forward(const at::Tensor& x, const nn::ForwardContext& ctx) const;

 private:
  std::variant<Attention, LatentAttention> part_;
};

/// What works on each token alone: an MLP or a mixture of experts.
class FeedForward {
 public:
  FeedForward(const nn::Scope& scope, const TransformerLayerOptions& options,
              const parallel::TensorParallel& tp, const parallel::ExpertParallel& experts);
  at::Tensor forward(const at::Tensor& x, const nn::ForwardContext& ctx) const;

 private:
  std::variant<Mlp, Moe> part_;
};

class TransformerLayer {
 public:
  TransformerLayer(const nn::Scope& scope, const TransformerLayerOptions& options,
                   parallel::TensorParallel tp, std::shared_ptr<const RotaryTable> rotary,
                   std::shared_ptr<const RelativeBias> bias = nullptr,
                   const parallel::ExpertParallel& experts = {},
                   const parallel::ContextWay& context = {});
  /// Of a layer without cross-attention.
  at::Tensor forward(const at::Tensor& x, const nn::ForwardContext& ctx) const;
  /// Of a layer with cross-attention: to the real tokens of `memory`.
  at::Tensor forward(const at::Tensor& x, const at::Tensor& memory,
                     const nn::SequenceLayout& memory_layout, const nn::ForwardContext& ctx) const;
  static nn::Cost cost(const TransformerLayerOptions& options, const nn::LayerShape& shape);

 private:
  /// A branch between its norms. Parameters: `name`_norm, `name`, `name`_output_norm,
  /// `name`_residual_norm.
  template <class Branch> struct Normed {
    template <class... Args>
    Normed(const nn::Scope& scope, const std::string& name, const TransformerLayerOptions& options,
           const parallel::TensorParallel& tp, Args&&... args);
    std::optional<Norm> input;
    Branch branch;
    std::optional<Norm> output, residual;
  };
  class Sum;
  at::Tensor run(const at::Tensor& x, const at::Tensor& memory,
                 const nn::SequenceLayout* memory_layout, const nn::ForwardContext& ctx) const;

  TransformerLayerOptions options_;
  Normed<SelfAttention> attention_;
  std::optional<Normed<CrossAttention>> cross_;
  Normed<FeedForward> mlp_;
};

} // namespace pentatron::layers
