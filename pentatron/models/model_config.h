/// A model as data, of any type: all that tells decoders such as GPT-2, Llama and Gemma, encoders
/// such as BERT, and T5 apart. Keys have the names that are common in the field.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "pentatron/config/field.h"
#include "pentatron/models/expert_fields.h"
#include "pentatron/models/latent_fields.h"
#include "pentatron/models/model_enums.h"
#include "pentatron/models/rope_scaling_config.h"

namespace pentatron::models {

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
  RopeScalingConfig rope_local_scaling;
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
  std::optional<int64_t> moe_latent_size;
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
  std::vector<LoadBalancing> moe_router_load_balancing_type = {LoadBalancing::kGlobal};
  std::vector<double> moe_aux_loss_coeff = {0.0};
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
  std::optional<int64_t> decoder_pad_token;

  /// A model of that type, BERT's as Devlin et al. 2019 (arXiv:1810.04805) describe it,
  /// T5's as Raffel et al. 2020 (arXiv:1910.10683) with the gated MLP of T5 1.1.
  static ModelConfig default_of(ModelType type);

  int64_t decoder_layers() const { return num_decoder_layers.value_or(num_layers); }
  /// Of all stacks.
  int64_t total_layers() const {
    return num_layers + (type == ModelType::kT5 ? decoder_layers() : 0);
  }
  /// Whether a router divides the scores of the selected experts by their sum. That of one expert
  /// would always be 1, and the router not learn.
  bool normalizes_topk() const {
    return moe_router_norm_topk_prob.value_or(
        moe_router_score_function != RouterScoreFunction::kSoftmax && moe_router_topk > 1);
  }
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
  bool scales_dynamically() const {
    return position_embedding_type == PositionEmbedding::kRope &&
           rope_scaling.type == RopeScalingType::kDynamic;
  }
  /// Default: 4 h, and 8/3 h rounded up to a multiple of 64 for gated activations, so that both
  /// have as many weights.
  int64_t ffn_size() const;
  int64_t num_parameters() const;
  /// Hidden size of one expert.
  int64_t expert_ffn_size() const { return moe_ffn_hidden_size.value_or(ffn_size()); }
  /// Whether moe_router_load_balancing_type has it.
  bool balanced_by(LoadBalancing type) const;
  /// The load balancing losses with their weights, those above 0.
  std::vector<std::pair<LoadBalancing, double>> balance_losses() const;
  /// Whether layer `index` has experts in the place of an MLP.
  bool is_moe_layer(int64_t index) const;
  /// The longest sequence that it has positions for; none: any.
  std::optional<int64_t> longest_sequence() const;
  /// A name for each of num_labels classes. Classes without a name are called LABEL_<number>, as in
  /// transformers.
  std::vector<std::string> class_names() const;
  /// Whether the head predicts a value for the whole sample, from its first token.
  bool pools() const;
  /// This model without multi-token prediction, which only training uses.
  ModelConfig without_mtp() const;
  /// This model, or with another head if it has none, so that it has a loss.
  ModelConfig with_loss() const;
  /// This model with one layer of each kind, for checks whose cost must not depend on the number of
  /// layers.
  ModelConfig with_one_layer() const;

  static constexpr auto fields() {
    using C = ModelConfig;
    using config::field;
    using config::OnResume;
    using T = ModelType;
    const auto of_all = std::tuple{
        field(
            "type", &C::type,
            "kind of model; gpt: decoder that predicts the next token; bert: encoder that "
            "restores masked tokens; t5: encoder and decoder that restores masked spans of text; "
            "some keys have a different default for each type; default: the type of model.preset, "
            "or of the model that a new run starts from, or gpt")
            .selects_variant(),
        field("preset", &C::preset,
              "name of a built-in model to start from (`pentatron config presets` lists them); "
              "other model keys override it")
            .on_resume(OnResume::kTold),
        field("num_layers", &C::num_layers,
              "number of transformer layers; type=t5: number of layers of the encoder")
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
              "the size of the tokenizer in tokenizer.path")
            .size()
            .unit("tokens")
            .of_task(),
        field("padding_token", &C::padding_token,
              "token id whose embedding is not trained by input tokens (like padding_idx of "
              "torch.nn.Embedding); -1: none")
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
              "base of rotary position embeddings in layers with a sliding window; these layers "
              "then have rope_local_scaling in place of rope_scaling; default: rotary_base, with "
              "rope_scaling")
            .positive()
            .only_for(T::kGpt, T::kBert),
        field("rope_scaling", &C::rope_scaling, "context extension for rotary position embeddings")
            .only_for(T::kGpt, T::kBert),
        field("rope_local_scaling", &C::rope_local_scaling,
              "with rope_local_base_freq: context extension for rotary position embeddings in "
              "layers with a sliding window")
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
              "store each norm weight as its difference from 1"),
        field("activation_func", &C::activation_func,
              "activation function of the MLP; swiglu, geglu, geglu_tanh, quick_geglu and reglu "
              "are gated"),
        field("activation_func_clamp_value", &C::activation_func_clamp_value,
              "limit for the inputs of gated activation functions: the gate is clamped from above, "
              "the linear part in both directions; default: no limit")
            .more_than(0)
            .max(1e6)
            .only_for(T::kGpt),
        field("glu_linear_offset", &C::glu_linear_offset,
              "number added to the linear part of a gated activation function, which the gate "
              "multiplies")
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
              "including itself; type=bert: a token attends to tokens at a distance below this "
              "number in both directions; default: all tokens")
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
            .on_resume(OnResume::kTold)};
    const auto of_types = std::tuple{
        field("mtp_num_layers", &C::mtp_num_layers,
              "multi-token prediction: number of additional layers after the last layer, each "
              "trained to predict one more token ahead; only training uses them; 0: none")
            .range(0, kMostMtpLayers)
            .of_task()
            .only_for(T::kGpt),
        field("mtp_loss_scaling_factor", &C::mtp_loss_scaling_factor,
              "weight of the mean of the multi-token prediction losses in the training loss")
            .non_negative()
            .on_resume(OnResume::kTold)
            .only_for(T::kGpt),
        field("head", &C::head,
              "type=bert: output of the model; masked_lm: predictions of the masked tokens; "
              "classification: one of num_labels classes for each sample; regression: a number for "
              "each sample; none: the hidden states")
            .of_task()
            .only_for(T::kBert),
        field("num_labels", &C::num_labels, "head=classification: number of classes")
            .range(2, 1 << 20)
            .of_task()
            .only_for(T::kBert)
            .only_with("head", ModelHead::kClassification),
        field("label_names", &C::label_names,
              "head=classification: names of the classes in the order of their numbers; []: the "
              "names in the model in checkpoint.load, or else the names in the training data, "
              "sorted by byte value")
            .on_resume(OnResume::kTold)
            .of_task()
            .only_for(T::kBert)
            .only_with("head", ModelHead::kClassification),
        field("classifier_dropout", &C::classifier_dropout,
              "head=classification and regression: dropout rate before the output layer; default: "
              "hidden_dropout")
            .range(0, 0.99)
            .on_resume(OnResume::kTold)
            .of_task()
            .only_for(T::kBert)
            .only_with("head", ModelHead::kClassification, ModelHead::kRegression),
        field("binary_head", &C::binary_head,
              "head=masked_lm: also predict the relation of the two texts of a sample (next "
              "sentence or sentence order)")
            .of_task()
            .only_for(T::kBert)
            .only_with("head", ModelHead::kMaskedLm),
        field("pooler", &C::pooler,
              "head=none: the model has the pooler, a layer applied to the first token of each "
              "sample")
            .of_task()
            .only_for(T::kBert)
            .only_with("head", ModelHead::kNone),
        field("num_tokentypes", &C::num_tokentypes,
              "type=bert: number of token types, which distinguish the texts of a sample; 0: none")
            .range(0, 1 << 20)
            .only_for(T::kBert),
        field("position_offset", &C::position_offset,
              "row of the position embedding table for the first position (RoBERTa: 2); the token "
              "id one below this number is padding, which is not counted as a position")
            .range(0, 1 << 20)
            .only_for(T::kBert),
        field("num_decoder_layers", &C::num_decoder_layers,
              "type=t5: number of layers of the decoder; default: num_layers")
            .range(1, int64_t{1} << 20)
            .only_for(T::kT5),
        field("relative_attention_num_buckets", &C::relative_attention_num_buckets,
              "type=t5: number of learned attention score biases per head; each one covers a range "
              "of distances")
            .range(4, 1 << 16)
            .only_for(T::kT5),
        field("relative_attention_max_distance", &C::relative_attention_max_distance,
              "type=t5: distance at and above which all tokens share the last relative attention "
              "bias")
            .range(2, 1 << 24)
            .unit("tokens")
            .only_for(T::kT5),
        field("scale_decoder_outputs", &C::scale_decoder_outputs,
              "type=t5: multiply the hidden states by hidden_size to the power of -1/2 before the "
              "output layer")
            .only_for(T::kT5),
        field("decoder_start_token", &C::decoder_start_token,
              "type=t5: token id that the decoder reads first")
            .min(0)
            .only_for(T::kT5),
        field("decoder_pad_token", &C::decoder_pad_token,
              "type=t5: token id that the decoder reads in place of missing tokens; default: "
              "decoder_start_token")
            .min(0)
            .only_for(T::kT5)};
    return std::tuple_cat(of_all, latent_fields<C>(), expert_fields<C>(), of_types);
  }
  void validate(config::Violations& violations, std::string_view path) const;

 private:
  void validate_latents(config::Violations& violations, std::string_view path) const;
  void validate_experts(config::Violations& violations, std::string_view path) const;
  void validate_balance(config::Violations& violations, std::string_view path) const;
};

} // namespace pentatron::models
