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
  kQuickGeGlu
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
                    config::name(A::kQuickGeGlu, "quick_geglu")};
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
inline constexpr int64_t kMostExperts = int64_t{1} << 16;
/// Of a loss of the router: more of it would leave nothing of the loss of tokens.
inline constexpr double kMostRouterLoss = 1000;

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
        field("type", &C::type, "method that extends the context of rotary position embeddings"),
        field("factor", &C::factor, "new context length divided by the original context length")
            .min(1),
        field("original_max_position_embeddings", &C::original_max_position_embeddings,
              "context length of the model before scaling")
            .positive()
            .unit("tokens"),
        field("low_freq_factor", &C::low_freq_factor,
              "llama3: wavelengths above the original context length / low_freq_factor are scaled "
              "by the full factor")
            .positive(),
        field("high_freq_factor", &C::high_freq_factor,
              "llama3: wavelengths below the original context length / high_freq_factor are not "
              "scaled")
            .positive(),
        field("beta_fast", &C::beta_fast,
              "yarn: dimensions that rotate more than this many times over the original context "
              "are not scaled")
            .positive(),
        field("beta_slow", &C::beta_slow,
              "yarn: dimensions that rotate fewer than this many times over the original context "
              "are scaled by the full factor")
            .positive(),
        field(
            "truncate", &C::truncate,
            "yarn: round the ends of the ramp between scaled and unscaled dimensions to integers"),
        field("attention_factor", &C::attention_factor,
              "yarn: factor applied to cos and sin; default: computed from factor")
            .positive(),
        field("mscale", &C::mscale,
              "yarn: coefficient in the numerator of DeepSeek's attention factor"),
        field("mscale_all_dim", &C::mscale_all_dim,
              "yarn: coefficient in the denominator of DeepSeek's attention factor")};
  }
};

inline constexpr int64_t kMostMtpLayers = 64;

struct ModelConfig {
  ModelType type = ModelType::kGpt;
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
  std::optional<double> rope_local_base_freq;
  RopeScalingConfig rope_scaling;
  Normalization normalization = Normalization::kRmsNorm;
  NormPlacement norm_placement = NormPlacement::kPre;
  double layernorm_epsilon = 1e-5;
  bool layernorm_zero_centered_gamma = false;
  ActivationFunction activation_func = ActivationFunction::kSwiGlu;
  std::optional<double> activation_func_clamp_value;
  double glu_linear_offset = 0.0;
  bool add_qkv_bias = false;
  bool add_attention_proj_bias = false;
  bool add_mlp_bias = false;
  bool qk_layernorm = false;
  QkNormScope qk_layernorm_scope = QkNormScope::kHead;
  std::optional<double> softmax_scale;
  std::optional<double> attn_logit_softcapping;
  std::optional<double> final_logit_softcapping;
  std::optional<double> embedding_multiplier;
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
  bool multi_latent_attention = false;
  std::optional<int64_t> q_lora_rank;
  int64_t kv_lora_rank = 512;
  int64_t qk_head_dim = 128;
  int64_t qk_pos_emb_head_dim = 64;
  int64_t v_head_dim = 128;
  std::optional<double> latent_layernorm_epsilon;
  std::optional<int64_t> num_moe_experts;
  std::string moe_layer_freq = "1";
  std::optional<int64_t> moe_ffn_hidden_size;
  int64_t moe_router_topk = 2;
  bool moe_router_logit_bias = false;
  RouterScoreFunction moe_router_score_function = RouterScoreFunction::kSoftmax;
  bool moe_router_pre_softmax = false;
  std::optional<bool> moe_router_norm_topk_prob;
  double moe_router_topk_scaling_factor = 1.0;
  std::optional<int64_t> moe_router_num_groups;
  std::optional<int64_t> moe_router_group_topk;
  std::optional<int64_t> moe_router_group_score_topk;
  bool moe_router_enable_expert_bias = false;
  double moe_router_bias_update_rate = 1e-3;
  LoadBalancing moe_router_load_balancing_type = LoadBalancing::kGlobal;
  double moe_aux_loss_coeff = 0.0;
  double moe_z_loss_coeff = 0.0;
  double moe_input_jitter_eps = 0.0;
  bool moe_router_force_load_balancing = false;
  std::optional<double> moe_expert_capacity_factor;
  TokenDropPolicy moe_token_drop_policy = TokenDropPolicy::kProbs;
  bool moe_pad_expert_input_to_capacity = false;
  std::optional<int64_t> moe_shared_expert_intermediate_size;
  bool moe_shared_expert_gate = false;
  int64_t mtp_num_layers = 0;
  double mtp_loss_scaling_factor = 0.1;
  ModelHead head = ModelHead::kMaskedLm;
  int64_t num_labels = 2;
  std::vector<std::string> label_names;
  std::optional<double> classifier_dropout;
  bool binary_head = true;
  bool pooler = true;
  int64_t num_tokentypes = 2;
  int64_t position_offset = 0;
  int64_t padding_token = -1;
  std::optional<int64_t> num_decoder_layers;
  int64_t relative_attention_num_buckets = 32;
  int64_t relative_attention_max_distance = 128;
  bool scale_decoder_outputs = true;
  int64_t decoder_start_token = 0;

  /// A model of that type, BERT's as Devlin et al. 2019 (arXiv:1810.04805) describe it,
  /// T5's as Raffel et al. 2020 (arXiv:1910.10683) with the gated MLP of T5 1.1.
  static ModelConfig default_of(ModelType type);

  int64_t decoder_layers() const { return num_decoder_layers.value_or(num_layers); }
  int64_t query_groups() const { return num_query_groups.value_or(num_attention_heads); }
  /// Of queries and keys.
  int64_t head_size() const {
    if (multi_latent_attention) return qk_head_dim + qk_pos_emb_head_dim;
    return kv_channels.value_or(hidden_size / num_attention_heads);
  }
  /// Of a head's features, those that rotary positions may turn.
  int64_t rotary_dim() const;
  /// The factor of attention scores; with latent attention it grows with the context, by YaRN's
  /// mscale_all_dim.
  double score_scale() const;
  bool gated() const;
  bool learns_positions() const {
    return position_embedding_type == PositionEmbedding::kLearnedAbsolute;
  }
  /// Default: 4 h, and 8/3 h rounded up to a multiple of 64 for gated activations, so that both
  /// have as many weights.
  int64_t ffn_size() const;
  int64_t num_parameters() const;
  /// Hidden size of one expert.
  int64_t expert_ffn_size() const { return moe_ffn_hidden_size.value_or(ffn_size()); }
  /// Whether layer `index` has experts in the place of an MLP.
  bool is_moe_layer(int64_t index) const;
  /// The longest sequence that it has positions for; none: any.
  std::optional<int64_t> longest_sequence() const;
  /// A name for each of num_labels classes: LABEL_<number>, as in transformers, where there is
  /// none.
  std::vector<std::string> class_names() const;
  /// Whether it says something of a whole sample, from its first token.
  bool pools() const;
  /// The same model without multi-token prediction, which training alone uses.
  ModelConfig without_mtp() const;
  /// The same model with one layer of each kind: layers are alike, and there may be a million.
  ModelConfig with_one_layer() const;

  static constexpr auto fields() {
    using C = ModelConfig;
    using config::field;
    using config::OnResume;
    using T = ModelType;
    return std::tuple{
        field("type", &C::type,
              "kind of model; gpt: a decoder that predicts the next token; bert: an encoder that "
              "restores masked tokens; t5: an encoder and a decoder, which generates removed spans "
              "of the text; each type has defaults of its own; default: that of "
              "model.preset or of the model in checkpoint.load, or gpt")
            .selects_variant(),
        field("preset", &C::preset,
              "name of a built-in model to start from (`pentatron config presets` lists them); "
              "other model keys override it")
            .on_resume(OnResume::kTold),
        field("num_layers", &C::num_layers,
              "number of transformer layers; type=t5: those of the encoder")
            .range(1, int64_t{1} << 20),
        field("hidden_size", &C::hidden_size, "size of the hidden states (residual stream)").size(),
        field("num_attention_heads", &C::num_attention_heads, "number of attention (query) heads")
            .size(),
        field("num_query_groups", &C::num_query_groups,
              "number of key-value heads (grouped-query attention); default: num_attention_heads")
            .size()
            .only_for(T::kGpt, T::kBert),
        field("kv_channels", &C::kv_channels,
              "size of each attention head; default: hidden_size / num_attention_heads")
            .size(),
        field("ffn_hidden_size", &C::ffn_hidden_size,
              "hidden size of the MLP; default: 4 x hidden_size, or 8/3 x hidden_size for gated "
              "activations")
            .size(),
        field("vocab_size", &C::vocab_size,
              "vocabulary size, without the padding that is added internally; if it is not given, "
              "that of the tokenizer in tokenizer.path")
            .size()
            .unit("tokens"),
        field("padding_token", &C::padding_token,
              "token id whose row of the word embeddings gets no gradient where it is looked up "
              "(padding_idx of torch.nn.Embedding); -1: none")
            .min(-1)
            .on_resume(OnResume::kTold)
            .only_for(T::kGpt, T::kBert),
        field("max_position_embeddings", &C::max_position_embeddings,
              "longest sequence that the model supports")
            .size()
            .unit("tokens")
            .only_for(T::kGpt, T::kBert),
        field("position_embedding_type", &C::position_embedding_type,
              "position encoding: learned embeddings, rotary (rope), or none")
            .only_for(T::kGpt, T::kBert),
        field("rotary_base", &C::rotary_base, "base (theta) of rotary position embeddings")
            .positive()
            .only_for(T::kGpt, T::kBert),
        field("rotary_percent", &C::rotary_percent,
              "fraction of each attention head that rotary position embeddings rotate")
            .more_than(0)
            .max(1)
            .only_for(T::kGpt, T::kBert),
        field("rotary_interleaved", &C::rotary_interleaved,
              "rotary position embeddings rotate pairs of adjacent dimensions instead of pairing "
              "the two halves of a head")
            .only_for(T::kGpt, T::kBert),
        field("rope_local_base_freq", &C::rope_local_base_freq,
              "base of rotary position embeddings in layers with a sliding window, which then "
              "ignore rope_scaling; default: rotary_base, with rope_scaling")
            .positive()
            .only_for(T::kGpt, T::kBert),
        field("rope_scaling", &C::rope_scaling, "context extension for rotary position embeddings")
            .only_for(T::kGpt, T::kBert),
        field("normalization", &C::normalization, "type of the normalization layers"),
        field("norm_placement", &C::norm_placement,
              "where the attention and MLP blocks have norms; pre: at their input; output: at "
              "their output, before it is added to the residual stream; pre_and_output: at both; "
              "post: after it is added"),
        field("layernorm_epsilon", &C::layernorm_epsilon,
              "value added to the variance in normalization layers for numerical stability")
            .positive(),
        field("layernorm_zero_centered_gamma", &C::layernorm_zero_centered_gamma,
              "store the weights of normalization layers minus 1"),
        field(
            "activation_func", &C::activation_func,
            "activation function of the MLP; swiglu, geglu, geglu_tanh and quick_geglu are gated"),
        field("activation_func_clamp_value", &C::activation_func_clamp_value,
              "limit of the input of gated activation functions: from above for the gate, in both "
              "directions for what it multiplies; default: no limit")
            .more_than(0)
            .max(1e6)
            .only_for(T::kGpt),
        field("glu_linear_offset", &C::glu_linear_offset,
              "number added to what the gate of a gated activation function multiplies")
            .only_for(T::kGpt),
        field("add_qkv_bias", &C::add_qkv_bias,
              "add a bias to the query, key and value projections"),
        field("add_attention_proj_bias", &C::add_attention_proj_bias,
              "add a bias to the attention output projection"),
        field("add_mlp_bias", &C::add_mlp_bias, "add biases to the linear layers of the MLP"),
        field("qk_layernorm", &C::qk_layernorm,
              "apply RMSNorm to the queries and keys of attention")
            .only_for(T::kGpt, T::kBert),
        field(
            "qk_layernorm_scope", &C::qk_layernorm_scope,
            "what qk_layernorm normalizes; head: each head separately, with one weight vector for "
            "all heads; projection: all heads of a token together")
            .only_for(T::kGpt, T::kBert),
        field("softmax_scale", &C::softmax_scale,
              "factor applied to attention scores; default: 1 / sqrt(head size)")
            .positive(),
        field("attn_logit_softcapping", &C::attn_logit_softcapping,
              "limit of attention scores: a score s becomes c x tanh(s / c); default: no limit")
            .more_than(0)
            .max(1e6)
            .only_for(T::kGpt, T::kBert),
        field("final_logit_softcapping", &C::final_logit_softcapping,
              "limit of the model's output logits: a logit x becomes c x tanh(x / c); default: no "
              "limit")
            .more_than(0)
            .max(1e6)
            .only_for(T::kGpt),
        field("embedding_multiplier", &C::embedding_multiplier,
              "factor applied to the token embeddings, rounded to dtype; default: 1")
            .more_than(0)
            .max(1e6)
            .only_for(T::kGpt),
        field("scale_attn_by_inverse_layer_idx", &C::scale_attn_by_inverse_layer_idx,
              "also divide attention scores by the layer number, counted from 1")
            .only_for(T::kGpt, T::kBert),
        field("softmax_type", &C::softmax_type,
              "attention sink: none (vanilla), a constant (off_by_one), or a learned value per "
              "head (learnable)")
            .only_for(T::kGpt, T::kBert),
        field("window_size", &C::window_size,
              "sliding-window attention: number of most recent tokens that a token attends to, "
              "including itself; type=bert: a token attends in both directions to tokens at a "
              "distance below it; default: all")
            .positive()
            .unit("tokens")
            .only_for(T::kGpt, T::kBert),
        field("full_attention_layers", &C::full_attention_layers,
              "layers, counted from 0, that ignore window_size and use full attention")
            .min(0)
            .only_for(T::kGpt, T::kBert),
        field("attention_dropout", &C::attention_dropout, "dropout rate of attention probabilities")
            .range(0, 0.99)
            .on_resume(OnResume::kTold),
        field("hidden_dropout", &C::hidden_dropout,
              "dropout rate of the output of every residual branch")
            .range(0, 0.99)
            .on_resume(OnResume::kTold),
        field("embedding_dropout", &C::embedding_dropout,
              "dropout rate of the embedding output; default: hidden_dropout")
            .range(0, 0.99)
            .on_resume(OnResume::kTold),
        field("untie_embeddings_and_output_weights", &C::untie_embeddings_and_output_weights,
              "use separate weights for the input embedding and the output layer")
            .only_with("head", ModelHead::kMaskedLm), // that of gpt and t5, too
        field("init_method_std", &C::init_method_std, "standard deviation of initial weights")
            .non_negative()
            .on_resume(OnResume::kTold),
        field("embedding_init_method_std", &C::embedding_init_method_std,
              "standard deviation of initial embedding weights; default: init_method_std")
            .non_negative()
            .on_resume(OnResume::kTold),
        field("use_scaled_init_method", &C::use_scaled_init_method,
              "scale the initial weights of projections into the residual stream by 1 / sqrt(2 x "
              "num_layers)")
            .on_resume(OnResume::kTold),
        field("multi_latent_attention", &C::multi_latent_attention,
              "multi-head latent attention (DeepSeek): make the keys and values of all heads from "
              "one small latent vector per token, which is all that generation keeps of it")
            .only_for(T::kGpt),
        field("q_lora_rank", &C::q_lora_rank,
              "multi_latent_attention: size of the latent that queries are made from; default: "
              "queries are made from the hidden states")
            .size()
            .only_for(T::kGpt),
        field("kv_lora_rank", &C::kv_lora_rank,
              "multi_latent_attention: size of the latent that keys and values are made from")
            .size()
            .only_for(T::kGpt),
        field("qk_head_dim", &C::qk_head_dim,
              "multi_latent_attention: size of the part of each query and key head without rotary "
              "positions")
            .size()
            .only_for(T::kGpt),
        field("qk_pos_emb_head_dim", &C::qk_pos_emb_head_dim,
              "multi_latent_attention: size of the part of each query and key head with rotary "
              "positions; all key heads share it")
            .size()
            .multiple_of(2)
            .only_for(T::kGpt),
        field("v_head_dim", &C::v_head_dim, "multi_latent_attention: size of each value head")
            .size()
            .only_for(T::kGpt),
        field("latent_layernorm_epsilon", &C::latent_layernorm_epsilon,
              "multi_latent_attention: layernorm_epsilon of the latents; default: "
              "layernorm_epsilon")
            .positive()
            .only_for(T::kGpt),
        field("num_moe_experts", &C::num_moe_experts,
              "mixture of experts: number of experts in each layer that has them; default: none")
            .range(1, kMostExperts)
            .only_for(T::kGpt),
        field("moe_layer_freq", &C::moe_layer_freq,
              "which layers have experts in place of the MLP; a number N: those whose number, "
              "counted from 0, is a multiple of N; or a list with 1 for each such layer, such as "
              "\"[0]*3+[1]*58\"")
            .only_for(T::kGpt),
        field("moe_ffn_hidden_size", &C::moe_ffn_hidden_size,
              "hidden size of each expert; default: ffn_hidden_size")
            .size()
            .only_for(T::kGpt),
        field("moe_router_topk", &C::moe_router_topk, "number of experts that work on each token")
            .range(1, kMostExperts)
            .only_for(T::kGpt),
        field("moe_router_logit_bias", &C::moe_router_logit_bias,
              "add a learned bias to the router's outputs, before scores are computed from them")
            .only_for(T::kGpt),
        field("moe_router_score_function", &C::moe_router_score_function,
              "function that turns the router's outputs into the experts' scores")
            .only_for(T::kGpt),
        field("moe_router_pre_softmax", &C::moe_router_pre_softmax,
              "moe_router_score_function=softmax: compute it over all experts instead of the "
              "selected ones")
            .only_for(T::kGpt),
        field("moe_router_norm_topk_prob", &C::moe_router_norm_topk_prob,
              "divide the scores of the selected experts by their sum; default: true for sigmoid "
              "and sqrtsoftplus, false for softmax")
            .only_for(T::kGpt),
        field("moe_router_topk_scaling_factor", &C::moe_router_topk_scaling_factor,
              "factor applied to the scores of the selected experts")
            .positive()
            .max(1e6)
            .only_for(T::kGpt),
        field("moe_router_num_groups", &C::moe_router_num_groups,
              "number of groups of experts for group-limited routing; default: no groups")
            .range(1, kMostExperts)
            .only_for(T::kGpt),
        field("moe_router_group_topk", &C::moe_router_group_topk,
              "number of groups that the experts of a token are selected from")
            .range(1, kMostExperts)
            .only_for(T::kGpt),
        field("moe_router_group_score_topk", &C::moe_router_group_score_topk,
              "number of experts whose scores add up to the score of their group; default: "
              "moe_router_topk / moe_router_group_topk")
            .range(1, kMostExperts)
            .only_for(T::kGpt),
        field("moe_router_enable_expert_bias", &C::moe_router_enable_expert_bias,
              "give each expert a bias that counts when experts are selected, but not in their "
              "weights, and that training moves towards equal load")
            .only_for(T::kGpt),
        field("moe_router_bias_update_rate", &C::moe_router_bias_update_rate,
              "by how much a step changes the expert biases: up for experts with less than the "
              "mean load, down for those with more; 0 with --hf")
            .range(0, 1)
            .on_resume(OnResume::kTold)
            .only_for(T::kGpt),
        field("moe_router_load_balancing_type", &C::moe_router_load_balancing_type,
              "how training balances the load of experts; global_aux_loss: a loss over the load in "
              "the last step; seq_aux_loss: over that in each sample; aux_loss: over that in each "
              "microbatch of a data-parallel rank; sinkhorn: select experts in training by "
              "Sinkhorn's iteration over the tokens of a rank; none: not")
            .on_resume(OnResume::kTold)
            .only_for(T::kGpt),
        field("moe_aux_loss_coeff", &C::moe_aux_loss_coeff,
              "weight of the load balancing loss, which is 1 for equal load")
            .non_negative()
            .max(kMostRouterLoss)
            .on_resume(OnResume::kTold)
            .only_for(T::kGpt),
        field("moe_z_loss_coeff", &C::moe_z_loss_coeff,
              "weight of the router's z-loss, which keeps its outputs small")
            .non_negative()
            .max(kMostRouterLoss)
            .on_resume(OnResume::kTold)
            .only_for(T::kGpt),
        field("moe_input_jitter_eps", &C::moe_input_jitter_eps,
              "training multiplies what the router reads by random numbers from 1 - eps to 1 + eps")
            .non_negative()
            .max(0.99)
            .on_resume(OnResume::kTold)
            .only_for(T::kGpt),
        field("moe_router_force_load_balancing", &C::moe_router_force_load_balancing,
              "for benchmarks: training gives every expert the same number of tokens, whatever the "
              "router says")
            .on_resume(OnResume::kTold)
            .only_for(T::kGpt),
        field("moe_expert_capacity_factor", &C::moe_expert_capacity_factor,
              "training drops tokens of an expert beyond tokens x moe_router_topk / "
              "num_moe_experts x this, of those on a rank; default: no token is dropped")
            .positive()
            .on_resume(OnResume::kTold)
            .only_for(T::kGpt),
        field("moe_token_drop_policy", &C::moe_token_drop_policy,
              "which tokens of a full expert are dropped; probs: those with the smallest weights; "
              "position: the last ones")
            .on_resume(OnResume::kTold)
            .only_for(T::kGpt),
        field("moe_pad_expert_input_to_capacity", &C::moe_pad_expert_input_to_capacity,
              "fill up the input of every expert with zeros to its capacity, so that sizes do not "
              "change from step to step")
            .on_resume(OnResume::kTold)
            .only_for(T::kGpt),
        field("moe_shared_expert_intermediate_size", &C::moe_shared_expert_intermediate_size,
              "hidden size of the shared experts together, which work on every token; default: "
              "no shared experts")
            .size()
            .only_for(T::kGpt),
        field("moe_shared_expert_gate", &C::moe_shared_expert_gate,
              "multiply the output of the shared experts by a learned gate")
            .only_for(T::kGpt),
        field("mtp_num_layers", &C::mtp_num_layers,
              "multi-token prediction: number of layers behind the last one, each of which learns "
              "to predict one more token ahead; training alone uses them; 0: none")
            .range(0, kMostMtpLayers)
            .only_for(T::kGpt),
        field("mtp_loss_scaling_factor", &C::mtp_loss_scaling_factor,
              "weight of the mean of the losses of multi-token prediction")
            .non_negative()
            .on_resume(OnResume::kTold)
            .only_for(T::kGpt),
        field("head", &C::head,
              "type=bert: output of the model; masked_lm: the masked tokens; classification: one "
              "of num_labels classes for each sample; regression: a number for each sample; none: "
              "the hidden states")
            .only_for(T::kBert),
        field("num_labels", &C::num_labels, "head=classification: number of classes")
            .range(2, 1 << 20)
            .only_for(T::kBert)
            .only_with("head", ModelHead::kClassification),
        field("label_names", &C::label_names,
              "head=classification: names of the classes in the order of their numbers; []: those "
              "of the model in checkpoint.load, or else the names in the training data, sorted by "
              "their bytes")
            .on_resume(OnResume::kTold)
            .only_for(T::kBert)
            .only_with("head", ModelHead::kClassification),
        field("classifier_dropout", &C::classifier_dropout,
              "head=classification and regression: dropout rate before the output layer; default: "
              "hidden_dropout")
            .range(0, 0.99)
            .on_resume(OnResume::kTold)
            .only_for(T::kBert)
            .only_with("head", ModelHead::kClassification, ModelHead::kRegression),
        field("binary_head", &C::binary_head,
              "head=masked_lm: also predict how the two texts of a sample belong together (next "
              "sentence or sentence order)")
            .only_for(T::kBert)
            .only_with("head", ModelHead::kMaskedLm),
        field("pooler", &C::pooler,
              "head=none: the model has the pooler, a layer applied to the first token of each "
              "sample")
            .only_for(T::kBert)
            .only_with("head", ModelHead::kNone),
        field("num_tokentypes", &C::num_tokentypes,
              "type=bert: number of token types, which tell the texts of a sample apart; 0: none")
            .range(0, 1 << 20)
            .only_for(T::kBert),
        field("position_offset", &C::position_offset,
              "learned positions start at this row of their table (RoBERTa: 2); the token id "
              "before it is padding, which they do not count")
            .range(0, 1 << 20)
            .only_for(T::kBert),
        field("num_decoder_layers", &C::num_decoder_layers,
              "type=t5: number of layers of the decoder; default: num_layers")
            .range(1, int64_t{1} << 20)
            .only_for(T::kT5),
        field("relative_attention_num_buckets", &C::relative_attention_num_buckets,
              "type=t5: number of learned biases of attention scores for each head; each is for a "
              "range of distances")
            .range(4, 1 << 16)
            .multiple_of(4)
            .only_for(T::kT5),
        field("relative_attention_max_distance", &C::relative_attention_max_distance,
              "type=t5: distance from which on all tokens share the last bias")
            .range(2, 1 << 24)
            .unit("tokens")
            .only_for(T::kT5),
        field("scale_decoder_outputs", &C::scale_decoder_outputs,
              "type=t5: multiply the hidden states by hidden_size to the power of -1/2 before the "
              "output layer")
            .only_for(T::kT5),
        field("decoder_start_token", &C::decoder_start_token,
              "type=t5: token id that the decoder reads first, and in the place of missing tokens")
            .min(0)
            .only_for(T::kT5)};
  }
  void validate(config::Violations& violations, std::string_view path) const;

 private:
  void validate_latents(config::Violations& violations, std::string_view path) const;
  void validate_experts(config::Violations& violations, std::string_view path) const;
  void validate_balance(config::Violations& violations, std::string_view path) const;
};

} // namespace pentatron::models
