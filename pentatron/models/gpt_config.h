/// The GPT family as data: everything that GPT-2, GPT-3, Llama, Mistral and Qwen differ in. Keys
/// keep the field's spelling.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "pentatron/config/field.h"

namespace pentatron::models {

enum class Normalization : uint8_t { kLayerNorm, kRmsNorm };
constexpr auto enum_names(Normalization) {
  return std::array{config::name(Normalization::kLayerNorm, "layernorm"),
                    config::name(Normalization::kRmsNorm, "rmsnorm")};
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
  kGeGluTanh
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
                    config::name(A::kGeGluTanh, "geglu_tanh")};
}

enum class PositionEmbedding : uint8_t { kLearnedAbsolute, kRope, kNone };
constexpr auto enum_names(PositionEmbedding) {
  using P = PositionEmbedding;
  return std::array{config::name(P::kLearnedAbsolute, "learned_absolute"),
                    config::name(P::kRope, "rope"), config::name(P::kNone, "none")};
}

enum class RopeScalingType : uint8_t { kNone, kLinear, kLlama3, kYarn };
constexpr auto enum_names(RopeScalingType) {
  using R = RopeScalingType;
  return std::array{config::name(R::kNone, "none"), config::name(R::kLinear, "linear"),
                    config::name(R::kLlama3, "llama3"), config::name(R::kYarn, "yarn")};
}

enum class SoftmaxType : uint8_t { kVanilla, kOffByOne, kLearnable };
constexpr auto enum_names(SoftmaxType) {
  using S = SoftmaxType;
  return std::array{config::name(S::kVanilla, "vanilla"), config::name(S::kOffByOne, "off_by_one"),
                    config::name(S::kLearnable, "learnable")};
}

struct RopeScalingConfig {
  RopeScalingType type = RopeScalingType::kNone;
  double factor = 1.0;
  int64_t original_max_position_embeddings = 8192;
  double low_freq_factor = 1.0;
  double high_freq_factor = 4.0;
  double beta_fast = 32.0;
  double beta_slow = 1.0;
  bool truncate = true;
  std::optional<double> attention_factor;
  std::optional<double> mscale;
  std::optional<double> mscale_all_dim;

  static constexpr auto fields() {
    using C = RopeScalingConfig;
    using config::field;
    return std::tuple{
        field("type", &C::type, "how frequencies are stretched to a longer context"),
        field("factor", &C::factor, "new context length over the original one").min(1),
        field("original_max_position_embeddings", &C::original_max_position_embeddings,
              "context length before scaling")
            .positive()
            .unit("tokens"),
        field("low_freq_factor", &C::low_freq_factor,
              "llama3: waves longer than original / this are stretched fully")
            .positive(),
        field("high_freq_factor", &C::high_freq_factor,
              "llama3: waves shorter than original / this stay")
            .positive(),
        field("beta_fast", &C::beta_fast, "yarn: pairs that turn more often than this stay")
            .positive(),
        field("beta_slow", &C::beta_slow,
              "yarn: pairs that turn less often than this are stretched fully")
            .positive(),
        field("truncate", &C::truncate, "yarn: round the ends of the ramp to whole pairs"),
        field("attention_factor", &C::attention_factor,
              "yarn: factor of cos and sin; default from factor")
            .positive(),
        field("mscale", &C::mscale, "yarn: as DeepSeek defines the attention factor"),
        field("mscale_all_dim", &C::mscale_all_dim,
              "yarn: as DeepSeek defines the attention factor")};
  }
};

struct GptConfig {
  std::string preset;
  int64_t num_layers = 4;
  int64_t hidden_size = 256;
  int64_t num_attention_heads = 4;
  std::optional<int64_t> num_query_groups;
  std::optional<int64_t> kv_channels;
  std::optional<int64_t> ffn_hidden_size;
  int64_t vocab_size = 257;
  int64_t max_position_embeddings = 1024;
  PositionEmbedding position_embedding_type = PositionEmbedding::kRope;
  double rotary_base = 10000.0;
  double rotary_percent = 1.0;
  bool rotary_interleaved = false;
  RopeScalingConfig rope_scaling;
  Normalization normalization = Normalization::kRmsNorm;
  double layernorm_epsilon = 1e-5;
  bool layernorm_zero_centered_gamma = false;
  ActivationFunction activation_func = ActivationFunction::kSwiGlu;
  bool add_qkv_bias = false;
  bool add_attention_proj_bias = false;
  bool add_mlp_bias = false;
  bool qk_layernorm = false;
  std::optional<double> softmax_scale;
  bool scale_attn_by_inverse_layer_idx = false;
  SoftmaxType softmax_type = SoftmaxType::kVanilla;
  std::optional<int64_t> window_size;
  std::vector<int64_t> full_attention_layers;
  double attention_dropout = 0.0;
  double hidden_dropout = 0.0;
  std::optional<double> embedding_dropout;
  bool untie_embeddings_and_output_weights = false;
  double init_method_std = 0.02;
  std::optional<double> embedding_init_method_std;
  bool use_scaled_init_method = true;

  int64_t query_groups() const { return num_query_groups.value_or(num_attention_heads); }
  int64_t head_size() const { return kv_channels.value_or(hidden_size / num_attention_heads); }
  bool gated() const;
  /// Default: 4 h, and 8/3 h rounded up to a multiple of 64 for gated activations, so that both
  /// have as many weights.
  int64_t ffn_size() const;
  int64_t num_parameters() const;

  static constexpr auto fields() {
    using C = GptConfig;
    using config::field;
    using config::OnResume;
    return std::tuple{
        field("preset", &C::preset, "start from a named model; other keys change it")
            .on_resume(OnResume::kTold),
        field("num_layers", &C::num_layers, "transformer layers").range(1, int64_t{1} << 20),
        field("hidden_size", &C::hidden_size, "width of the residual stream").size(),
        field("num_attention_heads", &C::num_attention_heads, "query heads").size(),
        field("num_query_groups", &C::num_query_groups,
              "key-value heads; default: as many as query heads")
            .size(),
        field("kv_channels", &C::kv_channels,
              "head size; default: hidden_size / num_attention_heads")
            .size(),
        field("ffn_hidden_size", &C::ffn_hidden_size,
              "MLP width; default: 4 x hidden_size, 8/3 x if gated")
            .size(),
        field("vocab_size", &C::vocab_size,
              "true vocabulary; padding is added inside and never counts")
            .size()
            .unit("tokens"),
        field("max_position_embeddings", &C::max_position_embeddings, "longest sequence")
            .size()
            .unit("tokens"),
        field("position_embedding_type", &C::position_embedding_type, "how positions enter"),
        field("rotary_base", &C::rotary_base, "theta of rotary positions").positive(),
        field("rotary_percent", &C::rotary_percent, "share of a head that is rotated")
            .more_than(0)
            .max(1),
        field("rotary_interleaved", &C::rotary_interleaved,
              "pairs are neighbours instead of halves"),
        field("rope_scaling", &C::rope_scaling, "context extension of rotary positions"),
        field("normalization", &C::normalization, "norm of the residual stream"),
        field("layernorm_epsilon", &C::layernorm_epsilon, "added to the variance").positive(),
        field("layernorm_zero_centered_gamma", &C::layernorm_zero_centered_gamma,
              "norm weights are stored minus 1"),
        field("activation_func", &C::activation_func, "of the MLP; the *glu ones are gated"),
        field("add_qkv_bias", &C::add_qkv_bias, "bias of the q, k, v projections"),
        field("add_attention_proj_bias", &C::add_attention_proj_bias,
              "bias of the attention output projection"),
        field("add_mlp_bias", &C::add_mlp_bias, "biases of the MLP"),
        field("qk_layernorm", &C::qk_layernorm, "RMSNorm of every head's q and k"),
        field("softmax_scale", &C::softmax_scale,
              "of attention scores; default 1 / sqrt(head size)")
            .positive(),
        field("scale_attn_by_inverse_layer_idx", &C::scale_attn_by_inverse_layer_idx,
              "divide scores by the layer's number too"),
        field("softmax_type", &C::softmax_type,
              "attention sinks: none, a constant one, or a learned one for each head"),
        field("window_size", &C::window_size,
              "sliding window: tokens that attention sees, the own one included")
            .positive()
            .unit("tokens"),
        field("full_attention_layers", &C::full_attention_layers,
              "layers (from 0) without the sliding window")
            .min(0),
        field("attention_dropout", &C::attention_dropout, "of attention probabilities")
            .range(0, 0.99)
            .on_resume(OnResume::kTold),
        field("hidden_dropout", &C::hidden_dropout, "of every residual branch")
            .range(0, 0.99)
            .on_resume(OnResume::kTold),
        field("embedding_dropout", &C::embedding_dropout,
              "of the embedding; default: hidden_dropout")
            .range(0, 0.99)
            .on_resume(OnResume::kTold),
        field("untie_embeddings_and_output_weights", &C::untie_embeddings_and_output_weights,
              "the output layer has a weight of its own"),
        field("init_method_std", &C::init_method_std, "standard deviation of initial weights")
            .non_negative()
            .on_resume(OnResume::kTold),
        field("embedding_init_method_std", &C::embedding_init_method_std,
              "of embeddings; default: init_method_std")
            .non_negative()
            .on_resume(OnResume::kTold),
        field("use_scaled_init_method", &C::use_scaled_init_method,
              "projections into the residual stream start 1 / sqrt(2 x layers) smaller")
            .on_resume(OnResume::kTold)};
  }
  void validate(config::Violations& violations, std::string_view path) const;
};

} // namespace pentatron::models
