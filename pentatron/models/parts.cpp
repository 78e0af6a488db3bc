#include "pentatron/models/parts.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "pentatron/base/error.h"
#include "pentatron/parallel/tensor/vocab.h"

namespace pentatron::models {

namespace {

kernels::Activation kernel_activation(ActivationFunction f) {
  using A = ActivationFunction;
  using K = kernels::Activation;
  switch (f) {
  case A::kGelu:
  case A::kGeGlu:
    return K::kGelu;
  case A::kGeluTanh:
  case A::kGeGluTanh:
    return K::kGeluTanh;
  case A::kQuickGelu:
  case A::kQuickGeGlu:
    return K::kQuickGelu;
  case A::kRelu:
  case A::kReGlu:
    return K::kRelu;
  case A::kSquaredRelu:
    return K::kSquaredRelu;
  case A::kSilu:
  case A::kSwiGlu:
    return K::kSilu;
  }
  PT_DCHECK(false);
}

kernels::GateOptions gate_options(const ModelConfig& c) {
  kernels::GateOptions o{.up_offset = c.glu_linear_offset};
  if (c.activation_func_clamp_value) o.limit = *c.activation_func_clamp_value;
  return o;
}

kernels::RopeOptions rope_options(const ModelConfig& c, double base, const RopeScalingConfig& s) {
  kernels::RopeOptions o{.rotary_dim = c.rotary_dim(),
                         .theta = base,
                         .factor = s.factor,
                         .original_max_position = s.original_max_position_embeddings,
                         .low_freq_factor = s.low_freq_factor,
                         .high_freq_factor = s.high_freq_factor,
                         .beta_fast = s.beta_fast,
                         .beta_slow = s.beta_slow,
                         .truncate = s.truncate,
                         .attention_factor = s.attention_factor,
                         .mscale = s.mscale,
                         .mscale_all_dim = s.mscale_all_dim,
                         .short_factor = s.short_factor,
                         .long_factor = s.long_factor};
  switch (s.type) {
  case RopeScalingType::kNone:
    o.scaling = kernels::RopeScaling::kNone;
    break;
  case RopeScalingType::kLinear:
    o.scaling = kernels::RopeScaling::kLinear;
    break;
  case RopeScalingType::kLlama3:
    o.scaling = kernels::RopeScaling::kLlama3;
    break;
  case RopeScalingType::kYarn:
    o.scaling = kernels::RopeScaling::kYarn;
    break;
  case RopeScalingType::kDynamic:
    o.scaling = kernels::RopeScaling::kDynamic;
    o.original_max_position = c.max_position_embeddings;
    break;
  case RopeScalingType::kLongRope:
    o.scaling = kernels::RopeScaling::kLongRope;
    break;
  }
  return o;
}

/// Sites of dropout: 0 is the embedding, then three for each layer.
uint32_t dropout_site(int64_t layer, uint32_t which) {
  return static_cast<uint32_t>(1 + 3 * layer) + which;
}

/// 0: the layer sees all earlier tokens.
int64_t window_of(const ModelConfig& c, int64_t layer) {
  const bool full =
      std::ranges::find(c.full_attention_layers, layer) != c.full_attention_layers.end();
  return full ? 0 : c.window_size.value_or(0);
}

} // namespace

uint32_t site_behind_layers(const ModelConfig& c) {
  return dropout_site(c.num_layers + c.mtp_num_layers, 0);
}

nn::Init embedding_init(const ModelConfig& c) {
  return nn::Init::normal(c.embedding_init_method_std.value_or(c.init_method_std));
}

nn::NormOptions norm_options(const ModelConfig& c) {
  return {.kind = c.normalization == Normalization::kLayerNorm ? kernels::NormKind::kLayerNorm
                                                               : kernels::NormKind::kRmsNorm,
          .eps = c.layernorm_epsilon,
          .zero_centered = c.layernorm_zero_centered_gamma};
}

namespace {

parallel::RouterScore router_score(RouterScoreFunction f) {
  switch (f) {
  case RouterScoreFunction::kSoftmax:
    return parallel::RouterScore::kSoftmax;
  case RouterScoreFunction::kSigmoid:
    return parallel::RouterScore::kSigmoid;
  case RouterScoreFunction::kSqrtSoftplus:
    return parallel::RouterScore::kSqrtSoftplus;
  }
  PT_DCHECK(false);
}

parallel::Balance balance_of(LoadBalancing type) {
  switch (type) {
  case LoadBalancing::kGlobal:
    return parallel::Balance::kGlobal;
  case LoadBalancing::kSequence:
    return parallel::Balance::kSequence;
  case LoadBalancing::kMicrobatch:
    return parallel::Balance::kMicrobatch;
  case LoadBalancing::kSinkhorn:
  case LoadBalancing::kNone:
    break; // no losses
  }
  PT_DCHECK(false);
}

/// Of a layer whose MLP would have these options.
layers::MoeOptions moe_options(const ModelConfig& c, const layers::MlpOptions& mlp, uint32_t site) {
  const int64_t groups = c.moe_router_num_groups.value_or(1),
                open = c.moe_router_group_topk.value_or(groups);
  layers::MoeOptions o{
      .expert = mlp,
      .latent = c.moe_latent_size.value_or(0),
      .router = {.experts = *c.num_moe_experts,
                 .top_k = c.moe_router_topk,
                 .score = router_score(c.moe_router_score_function),
                 .score_first = c.moe_router_pre_softmax,
                 .normalize = c.normalizes_topk(),
                 .scaling = c.moe_router_topk_scaling_factor,
                 .groups = groups,
                 .group_top_k = open,
                 .group_score_top_k = c.moe_router_group_score_topk.value_or(
                     std::max<int64_t>(1, c.moe_router_topk / open))},
      .router_bias = c.moe_router_logit_bias,
      .expert_bias = c.moe_router_enable_expert_bias,
      .shared = {},
      .shared_gate = c.moe_shared_expert_gate,
      .auxiliary = {.z_loss = c.moe_z_loss_coeff > 0},
      .capacity = {.factor = c.moe_expert_capacity_factor.value_or(0),
                   .by_position = c.moe_token_drop_policy == TokenDropPolicy::kPosition,
                   .pad = c.moe_pad_expert_input_to_capacity},
      .sinkhorn = c.balanced_by(LoadBalancing::kSinkhorn),
      .forced_balance = c.moe_router_force_load_balancing,
      .jitter = c.moe_input_jitter_eps,
      .site = site};
  for (const auto& [type, weight] : c.balance_losses())
    o.auxiliary.balance.push_back(balance_of(type));
  o.expert.ffn = c.expert_ffn_size();
  if (c.moe_shared_expert_intermediate_size) {
    o.shared = mlp;
    o.shared->ffn = *c.moe_shared_expert_intermediate_size;
  }
  return o;
}

} // namespace

std::vector<AuxiliaryTerm> auxiliary_terms(const ModelConfig& c) {
  std::vector<AuxiliaryTerm> terms;
  if (!c.num_moe_experts) return terms;
  using Per = AuxiliaryTerm::Per;
  for (const auto& [type, weight] : c.balance_losses())
    terms.push_back({.name = parallel::balance_term(balance_of(type)),
                     .weight = weight,
                     .per = type == LoadBalancing::kGlobal     ? Per::kToken
                            : type == LoadBalancing::kSequence ? Per::kSample
                                                               : Per::kMicrobatch});
  if (c.moe_z_loss_coeff > 0)
    terms.push_back({.name = parallel::kZLoss, .weight = c.moe_z_loss_coeff, .per = Per::kToken});
  return terms;
}

layers::TransformerLayerOptions layer_options(const ModelConfig& c, int64_t index) {
  const int64_t like = c.type == ModelType::kGpt ? std::min(index, c.num_layers - 1) : index;
  const double std = c.init_method_std;
  const double proj_std =
      c.use_scaled_init_method ? std / std::sqrt(2.0 * static_cast<double>(c.num_layers)) : std;
  const double base_scale = c.score_scale();
  layers::SoftmaxKind softmax = layers::SoftmaxKind::kVanilla;
  if (c.softmax_type == SoftmaxType::kOffByOne) softmax = layers::SoftmaxKind::kOffByOne;
  if (c.softmax_type == SoftmaxType::kLearnable) softmax = layers::SoftmaxKind::kLearnable;
  layers::TransformerLayerOptions options{
      .attention = {.hidden = c.hidden_size,
                    .heads = c.num_attention_heads,
                    .kv_heads = c.query_groups(),
                    .head_size = c.head_size(),
                    .qkv_bias = c.add_qkv_bias,
                    .proj_bias = c.add_attention_proj_bias,
                    .qk_norm = !c.qk_layernorm ? layers::QkNorm::kNone
                               : c.qk_layernorm_scope == QkNormScope::kHead
                                   ? layers::QkNorm::kHead
                                   : layers::QkNorm::kProjection,
                    .norm_eps = c.layernorm_epsilon,
                    .norm_zero_centered = c.layernorm_zero_centered_gamma,
                    .mask = c.type == ModelType::kBert ? layers::AttentionMask::kFull
                                                       : layers::AttentionMask::kCausal,
                    .scale = c.scale_attn_by_inverse_layer_idx
                                 ? base_scale / static_cast<double>(index + 1)
                                 : base_scale,
                    .window = window_of(c, like),
                    .score_cap = c.attn_logit_softcapping.value_or(0),
                    .softmax = softmax,
                    .dropout = c.attention_dropout,
                    .dropout_site = dropout_site(index, 0),
                    .init_std = std,
                    .proj_init_std = proj_std},
      .mlp = {.hidden = c.hidden_size,
              .ffn = c.ffn_size(),
              .activation = kernel_activation(c.activation_func),
              .gated = c.gated(),
              .gate = gate_options(c),
              .bias = c.add_mlp_bias,
              .init_std = std,
              .proj_init_std = proj_std},
      .moe = {},
      .norm = norm_options(c),
      .norm_input = c.norm_placement == NormPlacement::kPre ||
                    c.norm_placement == NormPlacement::kPreAndOutput,
      .norm_output = c.norm_placement == NormPlacement::kOutput ||
                     c.norm_placement == NormPlacement::kPreAndOutput,
      .norm_residual = c.norm_placement == NormPlacement::kPost,
      .hidden_dropout = c.hidden_dropout,
      .dropout_site = dropout_site(index, 1)};
  if (c.multi_latent_attention)
    options.attention.latent =
        layers::LatentSizes{.query_rank = c.q_lora_rank.value_or(0),
                            .rank = c.kv_lora_rank,
                            .plain_size = c.qk_head_dim,
                            .rotary_size = c.qk_pos_emb_head_dim,
                            .value_size = c.v_head_dim,
                            .norm_eps = c.latent_layernorm_epsilon.value_or(c.layernorm_epsilon)};
  if (c.is_moe_layer(like)) options.moe = moe_options(c, options.mlp, static_cast<uint32_t>(index));
  return options;
}

std::vector<SegmentSpec> stack_of_layers(int64_t layers) {
  std::vector<SegmentSpec> segments;
  segments.reserve(static_cast<size_t>(layers + 2));
  segments.push_back({.name = "embedding", .letter = 'E', .kind = 0, .takes = {}, .gives = {0}});
  for (int64_t i = 0; i < layers; ++i)
    segments.push_back({.name = "layer " + std::to_string(i),
                        .letter = 't',
                        .is_layer = true,
                        .recomputed = true,
                        .kind = 1,
                        .takes = {0},
                        .gives = {0}});
  segments.push_back({.name = "head", .letter = 'L', .kind = 2, .takes = {0}, .gives = {}});
  return segments;
}

Rotary::Rotary(const ModelConfig& config)
    : global_(std::make_shared<layers::RotaryTable>()),
      local_(config.rope_local_base_freq ? std::make_shared<layers::RotaryTable>() : global_) {}

std::shared_ptr<const layers::RotaryTable> Rotary::of_layer(const ModelConfig& config,
                                                            int64_t index) const {
  return window_of(config, index) > 0 ? local_ : global_;
}

void Rotary::fill(const ModelConfig& config, int64_t max_sequence, at::ScalarType dtype,
                  at::Device device) {
  if (config.position_embedding_type != PositionEmbedding::kRope) return;
  const auto table = [&](double base, const RopeScalingConfig& scaling) {
    return layers::RotaryTable::make(rope_options(config, base, scaling), config.rotary_interleaved,
                                     max_sequence, nn::acc_dtype(dtype), device);
  };
  *global_ = table(config.rotary_base, config.rope_scaling);
  if (config.rope_local_base_freq)
    *local_ = table(*config.rope_local_base_freq, config.rope_local_scaling);
}

void require_positions(const ModelConfig& config, int64_t max_sequence) {
  const int64_t most = config.longest_sequence().value_or(max_sequence);
  if (config.position_embedding_type == PositionEmbedding::kNone || max_sequence <= most) return;
  if (config.scales_dynamically())
    raise<ConfigError>("a sequence of {} tokens is longer than the {} that "
                       "model.max_position_embeddings={} with model.rope_scaling.factor={} "
                       "allows\n  try: at most {} tokens",
                       max_sequence, most, config.max_position_embeddings,
                       config.rope_scaling.factor, most);
  raise<ConfigError>("a sequence of {} tokens is longer than the {} that "
                     "model.max_position_embeddings={} allows\n  try: "
                     "model.max_position_embeddings={}, or at most {} tokens",
                     max_sequence, most, config.max_position_embeddings,
                     max_sequence + config.position_offset, most);
}

LayerSegment::LayerSegment(const nn::Scope& scope, const layers::TransformerLayerOptions& options,
                           const parallel::TensorParallel& tp,
                           std::shared_ptr<const layers::RotaryTable> rotary,
                           const parallel::ExpertParallel& experts,
                           const parallel::ContextWay& context)
    : name_(scope.prefix()),
      layer_(scope, options, tp, std::move(rotary), nullptr, experts, context) {}

nn::Segment::Output LayerSegment::forward(const std::vector<at::Tensor>& taken,
                                          const nn::ForwardContext& ctx) const {
  return {.flows = {layer_.forward(taken[0], ctx)}, .loss = {}};
}

LmHead::LmHead(const nn::Scope& norm_scope, const ModelConfig& config, nn::Param& weight,
               const parallel::TensorParallel& tp, const LmHeadOptions& options)
    : options_(options),
      head_(weight, nullptr, tp, config.final_logit_softcapping.value_or(0), options.adapters),
      tp_(tp) {
  if (options.norm) norm_.emplace(norm_scope, config.hidden_size, norm_options(config), tp);
}

nn::Segment::Output LmHead::forward(const std::vector<at::Tensor>& taken,
                                    const nn::ForwardContext& ctx) const {
  at::Tensor x = norm_ ? norm_->forward(taken[0], ctx) : taken[0];
  x = nn::dropout(x, options_.dropout, ctx);
  if (ctx.wanted.hidden) ctx.deposit(kLastHiddenState, parallel::gathered_tokens(x, tp_));
  if (options_.scale != 1) x = x * options_.scale;
  if (ctx.wanted.logits) ctx.deposit(kLogits, head_.logits(x, ctx.wanted.logit_rows, ctx));
  if (ctx.wanted.scored_rows.defined()) head_.score_tokens(x, ctx);
  if (!ctx.wanted.loss) return {};
  at::Tensor loss = head_.loss(x, "labels", kLmLoss, ctx);
  for (size_t i = 0; i < options_.further.size(); ++i) {
    const auto& [labels, term] = options_.further[i];
    if (ctx.given_scale(term)) loss = loss + head_.loss(taken[i + 1], labels, term, ctx);
  }
  return {.flows = {}, .loss = loss};
}

} // namespace pentatron::models
