#include "pentatron/models/gpt/gpt.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <fmt/format.h>

#include "pentatron/models/parts.h"
#include "pentatron/parallel/tensor/vocab.h"

namespace pentatron::models {

namespace {

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

} // namespace

ModelSpec Gpt::spec_of(const ModelConfig& config) {
  ModelSpec spec{.chosen_by = "model.type=gpt",
                 .streams = {"tokens"},
                 .flows = {{.name = "hidden", .width = config.hidden_size}},
                 .segments = stack_of_layers(config.num_layers),
                 .fields = data::next_token_fields(config.vocab_size),
                 .losses = {{.name = kLmLoss, .labels = "labels"}},
                 .shared = {},
                 .results = {{.name = kLogits}, {.name = kLastHiddenState}},
                 .generates = Generates::kContinuation};
  constexpr int kMoeLayer = 3;
  for (int64_t i = 0; i < config.num_layers && config.num_moe_experts; ++i) {
    if (!config.is_moe_layer(i)) continue;
    spec.segments[static_cast<size_t>(i + 1)].kind = kMoeLayer;
    spec.expert_layers.push_back(fmt::format("layers.{}.mlp", i));
  }
  if (!spec.expert_layers.empty()) spec.auxiliary = auxiliary_terms(config);
  spec.experts = config.num_moe_experts.value_or(0);
  if (config.position_embedding_type == PositionEmbedding::kLearnedAbsolute)
    spec.fields[0].positions = config.max_position_embeddings;
  if (!config.untie_embeddings_and_output_weights)
    spec.shared = {{kWordTable, {0, config.num_layers + 1}}};
  return spec;
}

Gpt::Gpt(const ModelConfig& config, const ModelBuild& build)
    : Model(config, build), rotary_(config) {
  const int64_t head = config.num_layers + 1;
  const bool tied = !config.untie_embeddings_and_output_weights;
  const nn::ShardSpec table = parallel::vocab_spec(config.vocab_size, config.hidden_size);
  assemble([&](int64_t unit) -> std::unique_ptr<nn::Segment> {
    const nn::Scope scope = root().of_unit(unit);
    if (unit == 0) {
      nn::Param& words = shared_param(unit, kWordTable, table, embedding_init(config));
      words.padding_row = config.padding_token;
      nn::Param* positions = nullptr;
      if (config.position_embedding_type == PositionEmbedding::kLearnedAbsolute) {
        positions = &scope.param("embedding.position.weight",
                                 {.name = {},
                                  .shape = {config.max_position_embeddings, config.hidden_size},
                                  .placements = parallel::token_wise(build.tp)},
                                 embedding_init(config));
      }
      return std::make_unique<EmbeddingSegment>(words, positions, config, build.tp);
    }
    if (unit < head) {
      return std::make_unique<LayerSegment>(
          scope / ("layers." + std::to_string(unit - 1)), layer_options(config, unit - 1), build.tp,
          rotary_.of_layer(config, unit - 1), build.experts, build.context.of_layer(unit - 1));
    }
    nn::Param* const output =
        tied ? &shared_param(unit, kWordTable, table, embedding_init(config))
             : &scope.param("output.weight",
                            parallel::vocab_spec(config.vocab_size, config.hidden_size),
                            nn::Init::normal(config.init_method_std));
    return std::make_unique<LmHead>(scope / "final_norm", config, *output, build.tp);
  });
}

void Gpt::finish(at::Device device, const std::vector<int64_t>& longest) {
  require_positions(config_, longest[0]);
  rotary_.fill(config_, longest[0], build_.dtype, device);
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
