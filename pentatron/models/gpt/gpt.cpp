#include "pentatron/models/gpt/gpt.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>

#include "pentatron/base/error.h"
#include "pentatron/parallel/tensor/vocab.h"

namespace pentatron::models {

namespace {

constexpr const char* kLmLoss = "lm loss";

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
    return K::kQuickGelu;
  case A::kRelu:
    return K::kRelu;
  case A::kSquaredRelu:
    return K::kSquaredRelu;
  case A::kSilu:
  case A::kSwiGlu:
    return K::kSilu;
  }
  PT_DCHECK(false);
}

nn::NormOptions norm_options(const ModelConfig& c) {
  return {.kind = c.normalization == Normalization::kLayerNorm ? kernels::NormKind::kLayerNorm
                                                               : kernels::NormKind::kRmsNorm,
          .eps = c.layernorm_epsilon,
          .zero_centered = c.layernorm_zero_centered_gamma};
}

constexpr const char* kTable = "embedding.word.weight";

/// Sites of dropout: 0 is the embedding, then three for each layer.
uint32_t dropout_site(int64_t layer, uint32_t which) {
  return static_cast<uint32_t>(1 + 3 * layer) + which;
}

nn::Init embedding_init(const ModelConfig& c) {
  return nn::Init::normal(c.embedding_init_method_std.value_or(c.init_method_std));
}

class EmbeddingSegment final : public nn::Segment {
 public:
  EmbeddingSegment(nn::Param& table, nn::Param* positions, const ModelConfig& config,
                   const parallel::TensorParallel& tp)
      : embedding_(table, config.embedding_multiplier ? nullptr : positions, tp),
        positions_(config.embedding_multiplier ? positions : nullptr),
        dropout_(config.embedding_dropout.value_or(config.hidden_dropout)) {
    if (config.embedding_multiplier)
      multiplier_ =
          at::scalar_tensor(*config.embedding_multiplier, at::dtype(table.dtype())).item<double>();
  }
  std::string name() const override { return "embedding"; }
  Output forward(const std::vector<at::Tensor>&, const nn::ForwardContext& ctx) const override {
    at::Tensor x = embedding_.forward(ctx.batch->field("input_ids"), ctx);
    if (multiplier_ != 1) x = x * multiplier_;
    if (positions_ != nullptr) // behind the multiplier, which is of the words alone
      x = x + nn::embedding(ctx.layout->outer(ctx.layout->positions).to(at::kLong), *positions_,
                            nullptr, 0, ctx);
    return {.flows = {nn::dropout(x, {.p = dropout_, .site = 0}, ctx)}, .loss = {}};
  }

 private:
  parallel::VocabParallelEmbedding embedding_;
  nn::Param* positions_; ///< null: none, or those of embedding_
  double dropout_;
  double multiplier_ = 1; ///< as a number of the model's type
};

class LayerSegment final : public nn::Segment {
 public:
  LayerSegment(const nn::Scope& scope, const layers::TransformerLayerOptions& options,
               const parallel::TensorParallel& tp,
               std::shared_ptr<const layers::RotaryTable> rotary)
      : name_(scope.prefix()), layer_(scope, options, tp, std::move(rotary)) {}
  std::string name() const override { return name_; }
  bool recomputable() const override { return true; }
  Output forward(const std::vector<at::Tensor>& taken,
                 const nn::ForwardContext& ctx) const override {
    return {.flows = {layer_.forward(taken[0], ctx)}, .loss = {}};
  }

 private:
  std::string name_;
  layers::TransformerLayer layer_;
};

class HeadSegment final : public nn::Segment {
 public:
  HeadSegment(const nn::Scope& norm_scope, const ModelConfig& config, nn::Param& weight,
              const parallel::TensorParallel& tp)
      : norm_(norm_scope, config.hidden_size, norm_options(config), tp),
        head_(weight, nullptr, tp, config.final_logit_softcapping.value_or(0)), tp_(tp) {}
  std::string name() const override { return "head"; }
  Output forward(const std::vector<at::Tensor>& taken,
                 const nn::ForwardContext& ctx) const override {
    const at::Tensor x = norm_.forward(taken[0], ctx);
    if (ctx.wanted.hidden) ctx.deposit("hidden", parallel::gathered_tokens(x, tp_));
    if (ctx.wanted.logits) ctx.deposit("logits", head_.logits(x, ctx.wanted.logit_rows));
    if (!ctx.wanted.loss) return {};
    return {.flows = {}, .loss = head_.loss(x, ctx.batch->field("labels"), kLmLoss, ctx)};
  }

 private:
  layers::Norm norm_;
  parallel::VocabHead head_;
  parallel::TensorParallel tp_;
};

kernels::RopeOptions rope_options(const ModelConfig& c) {
  const RopeScalingConfig& s = c.rope_scaling;
  kernels::RopeOptions o{
      .rotary_dim = static_cast<int64_t>(static_cast<double>(c.head_size()) * c.rotary_percent),
      .theta = c.rotary_base,
      .factor = s.factor,
      .original_max_position = s.original_max_position_embeddings,
      .low_freq_factor = s.low_freq_factor,
      .high_freq_factor = s.high_freq_factor,
      .beta_fast = s.beta_fast,
      .beta_slow = s.beta_slow,
      .truncate = s.truncate,
      .attention_factor = s.attention_factor,
      .mscale = s.mscale,
      .mscale_all_dim = s.mscale_all_dim};
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
  }
  return o;
}

/// 0: the layer sees all earlier tokens.
int64_t window_of(const ModelConfig& c, int64_t layer) {
  const bool full =
      std::ranges::find(c.full_attention_layers, layer) != c.full_attention_layers.end();
  return full ? 0 : c.window_size.value_or(0);
}

} // namespace

layers::TransformerLayerOptions layer_options(const ModelConfig& c, int64_t index) {
  const double std = c.init_method_std;
  const double proj_std =
      c.use_scaled_init_method ? std / std::sqrt(2.0 * static_cast<double>(c.num_layers)) : std;
  const double base_scale =
      c.softmax_scale.value_or(1.0 / std::sqrt(static_cast<double>(c.head_size())));
  layers::SoftmaxKind softmax = layers::SoftmaxKind::kVanilla;
  if (c.softmax_type == SoftmaxType::kOffByOne) softmax = layers::SoftmaxKind::kOffByOne;
  if (c.softmax_type == SoftmaxType::kLearnable) softmax = layers::SoftmaxKind::kLearnable;
  return {.attention = {.hidden = c.hidden_size,
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
                        .scale = c.scale_attn_by_inverse_layer_idx
                                     ? base_scale / static_cast<double>(index + 1)
                                     : base_scale,
                        .window = window_of(c, index),
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
                  .bias = c.add_mlp_bias,
                  .init_std = std,
                  .proj_init_std = proj_std},
          .norm = norm_options(c),
          .norm_input = c.norm_placement != NormPlacement::kOutput,
          .norm_output = c.norm_placement != NormPlacement::kPre,
          .hidden_dropout = c.hidden_dropout,
          .dropout_site = dropout_site(index, 1)};
}

ModelSpec Gpt::spec_of(const ModelConfig& config) {
  ModelSpec spec{.streams = {"tokens"},
                 .flows = {{.name = "hidden", .width = config.hidden_size}},
                 .segments = {},
                 .losses = {{.name = kLmLoss, .labels = "labels"}},
                 .shared = {},
                 .generates = Generates::kCausal};
  spec.segments.push_back(
      {.name = "embedding", .letter = 'E', .kind = 0, .takes = {}, .gives = {0}});
  for (int64_t i = 0; i < config.num_layers; ++i) {
    spec.segments.push_back({.name = "layer " + std::to_string(i),
                             .letter = 't',
                             .is_layer = true,
                             .kind = 1,
                             .takes = {0},
                             .gives = {0}});
  }
  if (!config.untie_embeddings_and_output_weights)
    spec.shared = {{kTable, {0, config.num_layers + 1}}};
  spec.segments.push_back({.name = "head", .letter = 'L', .kind = 2, .takes = {0}, .gives = {}});
  return spec;
}

Gpt::Gpt(const ModelConfig& config, const ModelBuild& build) : Model(config, build) {
  const int64_t head = config.num_layers + 1;
  const bool tied = !config.untie_embeddings_and_output_weights;
  const nn::Scope root(params_, build.dtype, {{"tp", {build.tp.rank(), build.tp.size()}}});
  rotary_ = std::make_shared<layers::RotaryTable>();
  local_rotary_ = config.rope_local_base_freq ? std::make_shared<layers::RotaryTable>() : rotary_;

  nn::Param* table = nullptr; // of the embedding, and of the head if tied
  const auto make_table = [&](int64_t unit) {
    if (table != nullptr) {
      table->used_by(unit);
      return table;
    }
    nn::ShardSpec spec = parallel::vocab_spec(config.vocab_size, config.hidden_size);
    const bool on_two_ranks = tied && holds(0) != holds(head);
    table = &root.of_unit(unit).shared_param(kTable, std::move(spec), embedding_init(config),
                                             on_two_ranks ? nn::AxisPosition{unit == 0 ? 0 : 1, 2}
                                                          : nn::AxisPosition{});
    return table;
  };
  assemble([&](int64_t unit) -> std::unique_ptr<nn::Segment> {
    const nn::Scope scope = root.of_unit(unit);
    if (unit == 0) {
      nn::Param* const words = make_table(unit);
      nn::Param* positions = nullptr;
      if (config.position_embedding_type == PositionEmbedding::kLearnedAbsolute) {
        positions = &scope.param("embedding.position.weight",
                                 {.name = {},
                                  .shape = {config.max_position_embeddings, config.hidden_size},
                                  .placements = parallel::token_wise(build.tp)},
                                 embedding_init(config));
      }
      return std::make_unique<EmbeddingSegment>(*words, positions, config, build.tp);
    }
    if (unit < head) {
      return std::make_unique<LayerSegment>(
          scope / ("layers." + std::to_string(unit - 1)), layer_options(config, unit - 1), build.tp,
          window_of(config, unit - 1) > 0 ? local_rotary_ : rotary_);
    }
    nn::Param* const output =
        tied ? make_table(unit)
             : &scope.param("output.weight",
                            parallel::vocab_spec(config.vocab_size, config.hidden_size),
                            nn::Init::normal(config.init_method_std));
    return std::make_unique<HeadSegment>(scope / "final_norm", config, *output, build.tp);
  });
}

void Gpt::finish(at::Device device, const std::vector<int64_t>& longest) {
  const int64_t max_sequence = longest[0];
  if (config_.position_embedding_type != PositionEmbedding::kNone &&
      max_sequence > config_.max_position_embeddings) {
    raise<ConfigError>("a sequence of {} tokens is longer than model.max_position_embeddings={}\n  "
                       "try: model.max_position_embeddings={}",
                       max_sequence, config_.max_position_embeddings, max_sequence);
  }
  if (config_.position_embedding_type != PositionEmbedding::kRope) return;
  const auto table = [&](const kernels::RopeOptions& options) {
    return layers::RotaryTable::make(options, config_.rotary_interleaved, max_sequence,
                                     nn::acc_dtype(build_.dtype), device);
  };
  *rotary_ = table(rope_options(config_));
  if (!config_.rope_local_base_freq) return;
  kernels::RopeOptions local = rope_options(config_);
  local.theta = *config_.rope_local_base_freq;
  local.scaling = kernels::RopeScaling::kNone;
  *local_rotary_ = table(local);
}

nn::Cost Gpt::segment_cost(const ModelConfig& c, const std::vector<nn::LayerShape>& shapes,
                           int64_t segment) {
  const nn::LayerShape& shape = shapes[0];
  if (segment > 0 && segment <= c.num_layers) {
    return layers::TransformerLayer::cost(layer_options(c, segment - 1), shape);
  }
  nn::Cost cost;
  if (segment == 0) {
    if (c.position_embedding_type == PositionEmbedding::kLearnedAbsolute)
      cost.saved_bytes = static_cast<int64_t>(sizeof(int64_t)) * shape.tokens; // their numbers
    if (shape.tp > 1) cost.tp_all_reduce = {shape.element_bytes * shape.tokens * c.hidden_size, 1};
    return cost;
  }
  const int64_t statistics = c.normalization == Normalization::kLayerNorm ? 2 : 1;
  cost.forward_gemm_flops = 2.0 * static_cast<double>(shape.tokens) *
                            static_cast<double>(c.hidden_size) *
                            static_cast<double>((c.vocab_size + shape.tp - 1) / shape.tp);
  // The final norm keeps its input and statistics; the loss keeps its input's gradient.
  cost.saved_bytes = 2 * shape.element_bytes * shape.tokens * c.hidden_size +
                     shape.acc_bytes * shape.tokens * statistics;
  if (shape.tp > 1) {
    cost.tp_all_reduce = {
        shape.element_bytes * shape.tokens * c.hidden_size + 3 * shape.acc_bytes * shape.tokens, 4};
  }
  return cost;
}

} // namespace pentatron::models
