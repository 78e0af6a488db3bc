/// The choices of a model's configuration, and limits of its numbers.
#pragma once

#include <array>
#include <cstdint>

#include "pentatron/config/field.h"

namespace pentatron::models {

enum class ModelType : uint8_t { kGpt, kBert, kT5 };
constexpr auto enum_names(ModelType) {
  return std::array{config::name(ModelType::kGpt, "gpt"), config::name(ModelType::kBert, "bert"),
                    config::name(ModelType::kT5, "t5")};
}

/// What an encoder ends in.
enum class ModelHead : uint8_t { kMaskedLm, kClassification, kRegression, kNone };
constexpr auto enum_names(ModelHead) {
  using H = ModelHead;
  return std::array{config::name(H::kMaskedLm, "masked_lm"),
                    config::name(H::kClassification, "classification"),
                    config::name(H::kRegression, "regression"), config::name(H::kNone, "none")};
}

enum class Normalization : uint8_t { kLayerNorm, kRmsNorm };
constexpr auto enum_names(Normalization) {
  return std::array{config::name(Normalization::kLayerNorm, "layernorm"),
                    config::name(Normalization::kRmsNorm, "rmsnorm")};
}

enum class NormPlacement : uint8_t { kPre, kOutput, kPreAndOutput, kPost };
constexpr auto enum_names(NormPlacement) {
  using P = NormPlacement;
  return std::array{config::name(P::kPre, "pre"), config::name(P::kOutput, "output"),
                    config::name(P::kPreAndOutput, "pre_and_output"),
                    config::name(P::kPost, "post")};
}

enum class QkNormScope : uint8_t { kHead, kProjection };
constexpr auto enum_names(QkNormScope) {
  return std::array{config::name(QkNormScope::kHead, "head"),
                    config::name(QkNormScope::kProjection, "projection")};
}

enum class ActivationFunction : uint8_t {
  kGelu,
  kGeluTanh,
  kQuickGelu,
  kRelu,
  kSquaredRelu,
  kSilu,
  kSwiGlu,
  kGeGlu,
  kGeGluTanh,
  kQuickGeGlu,
  kReGlu
};
constexpr auto enum_names(ActivationFunction) {
  using A = ActivationFunction;
  return std::array{config::name(A::kGelu, "gelu"),
                    config::name(A::kGeluTanh, "gelu_tanh"),
                    config::name(A::kQuickGelu, "quick_gelu"),
                    config::name(A::kRelu, "relu"),
                    config::name(A::kSquaredRelu, "squared_relu"),
                    config::name(A::kSilu, "silu"),
                    config::name(A::kSwiGlu, "swiglu"),
                    config::name(A::kGeGlu, "geglu"),
                    config::name(A::kGeGluTanh, "geglu_tanh"),
                    config::name(A::kQuickGeGlu, "quick_geglu"),
                    config::name(A::kReGlu, "reglu")};
}

enum class PositionEmbedding : uint8_t { kLearnedAbsolute, kRope, kNone };
constexpr auto enum_names(PositionEmbedding) {
  using P = PositionEmbedding;
  return std::array{config::name(P::kLearnedAbsolute, "learned_absolute"),
                    config::name(P::kRope, "rope"), config::name(P::kNone, "none")};
}

enum class RopeScalingType : uint8_t { kNone, kLinear, kLlama3, kYarn, kDynamic, kLongRope };
constexpr auto enum_names(RopeScalingType) {
  using R = RopeScalingType;
  return std::array{config::name(R::kNone, "none"),       config::name(R::kLinear, "linear"),
                    config::name(R::kLlama3, "llama3"),   config::name(R::kYarn, "yarn"),
                    config::name(R::kDynamic, "dynamic"), config::name(R::kLongRope, "longrope")};
}

enum class SoftmaxType : uint8_t { kVanilla, kOffByOne, kLearnable };
constexpr auto enum_names(SoftmaxType) {
  using S = SoftmaxType;
  return std::array{config::name(S::kVanilla, "vanilla"), config::name(S::kOffByOne, "off_by_one"),
                    config::name(S::kLearnable, "learnable")};
}

enum class RouterScoreFunction : uint8_t { kSoftmax, kSigmoid, kSqrtSoftplus };
constexpr auto enum_names(RouterScoreFunction) {
  using S = RouterScoreFunction;
  return std::array{config::name(S::kSoftmax, "softmax"), config::name(S::kSigmoid, "sigmoid"),
                    config::name(S::kSqrtSoftplus, "sqrtsoftplus")};
}

enum class LoadBalancing : uint8_t { kGlobal, kSequence, kMicrobatch, kSinkhorn, kNone };
constexpr auto enum_names(LoadBalancing) {
  using L = LoadBalancing;
  return std::array{config::name(L::kGlobal, "global_aux_loss"),
                    config::name(L::kSequence, "seq_aux_loss"),
                    config::name(L::kMicrobatch, "aux_loss"),
                    config::name(L::kSinkhorn, "sinkhorn"), config::name(L::kNone, "none")};
}

enum class TokenDropPolicy : uint8_t { kProbs, kPosition };
constexpr auto enum_names(TokenDropPolicy) {
  using P = TokenDropPolicy;
  return std::array{config::name(P::kProbs, "probs"), config::name(P::kPosition, "position")};
}

/// Experts of a layer, groups of them, and experts of a token.
inline constexpr int64_t kMostExperts = int64_t{1} << 12; // Switch Transformers had 2,048
/// Of a loss of the router: more of it would leave nothing of the loss of tokens.
inline constexpr double kMostRouterLoss = 1000;

inline constexpr int64_t kMostMtpLayers = 64;

} // namespace pentatron::models
