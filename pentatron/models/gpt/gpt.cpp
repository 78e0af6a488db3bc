#include "pentatron/models/gpt/gpt.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <fmt/format.h>

#include "pentatron/base/planted_bug.h"
#include "pentatron/models/parts.h"
#include "pentatron/parallel/tensor/linear.h"
#include "pentatron/parallel/tensor/vocab.h"

namespace pentatron::models {

namespace {

class EmbeddingSegment final : public nn::Segment {
 public:
  explicit EmbeddingSegment(TokenEmbedding embedding) : embedding_(std::move(embedding)) {}
  std::string name() const override { return "embedding"; }
  Output forward(const std::vector<at::Tensor>&, const nn::ForwardContext& ctx) const override {
    return {.flows = {embedding_.forward(ctx.batch->field("input_ids"), {}, /*site=*/0, ctx)},
            .loss = {}};
  }

 private:
  TokenEmbedding embedding_;
};

constexpr const char* kPositionTable = "embedding.position.weight";

/// Numbers of segments: the layers, then the depths of multi-token prediction, then the head.
int64_t first_depth(const ModelConfig& c) {
  return c.num_layers + 1;
}
int64_t head_of(const ModelConfig& c) {
  return first_depth(c) + c.mtp_num_layers;
}

/// What multi-token prediction adds to a decoder. Flow 0 is the hidden states, behind the first
/// depth those behind the final norm; flow d is what depth d gives.
void add_depths(const ModelConfig& c, ModelSpec& spec) {
  constexpr int kFirstDepth = 4, kDepth = 5, kHeadOfDepths = 6;
  SegmentSpec head = std::move(spec.segments.back());
  spec.segments.pop_back();
  head.kind = kHeadOfDepths;
  for (int depth = 1; depth <= c.mtp_num_layers; ++depth) {
    const std::string term = mtp_term(depth);
    spec.flows.push_back(
        {.name = fmt::format("mtp_{}", depth), .width = c.hidden_size, .term = term});
    spec.losses.push_back(
        {.name = term,
         .labels = mtp_labels(depth),
         .weight = c.mtp_loss_scaling_factor / static_cast<double>(c.mtp_num_layers),
         .evaluated = false});
    spec.segments.push_back({.name = fmt::format("mtp {}", depth),
                             .letter = 'm',
                             .recomputed = true,
                             .kind = depth == 1 ? kFirstDepth : kDepth,
                             .takes = {depth - 1},
                             .gives = {depth}});
    if (depth == 1) spec.segments.back().gives = {0, 1};
    head.takes.push_back(depth);
    if (c.is_moe_layer(c.num_layers - 1))
      spec.expert_layers.push_back(fmt::format("mtp.{}.layer.mlp", depth - 1));
  }
  spec.segments.push_back(std::move(head));
  spec.shifted_fields = mtp_fields(c);
}

/// The tables that several segments read.
std::vector<SharedParam> shared_tables(const ModelConfig& c) {
  std::vector<int64_t> readers = {0};
  for (int64_t i = first_depth(c); i < head_of(c); ++i) readers.push_back(i);
  std::vector<SharedParam> shared;
  if (c.learns_positions() && readers.size() > 1) shared.push_back({kPositionTable, readers});
  if (!c.untie_embeddings_and_output_weights) readers.push_back(head_of(c));
  if (readers.size() > 1) shared.push_back({kWordTable, readers});
  return shared;
}

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
  if (config.mtp_num_layers > 0) add_depths(config, spec);
  if (!spec.expert_layers.empty()) spec.auxiliary = auxiliary_terms(config);
  spec.experts = config.num_moe_experts.value_or(0);
  if (config.learns_positions()) spec.fields[0].positions = config.max_position_embeddings;
  spec.shared = shared_tables(config);
  return spec;
}

TokenEmbedding Gpt::make_embedding(int64_t segment) {
  const nn::ShardSpec table = parallel::vocab_spec(config_.vocab_size, config_.hidden_size);
  nn::Param& words = shared_param(segment, kWordTable, table, embedding_init(config_));
  if (segment == 0 || !planted("padding_row_of_the_first_stage_alone"))
    words.padding_row = config_.padding_token;
  nn::Param* positions = nullptr;
  if (config_.learns_positions())
    positions = &shared_param(segment, kPositionTable,
                              {.name = {},
                               .shape = {config_.max_position_embeddings, config_.hidden_size},
                               .table = true,
                               .placements = parallel::token_wise(build_.tp)},
                              embedding_init(config_));
  parallel::VocabAdapters adapters; // none where depths look up in the table, too
  if (config_.mtp_num_layers == 0)
    adapters = {root().of_segment(segment) / kWordModule, words, nn::AdaptedUse::kEmbedding};
  return {words, positions, config_, build_.tp, adapters};
}

std::unique_ptr<nn::Segment> Gpt::make_depth(int64_t segment) {
  const ModelConfig& c = config_;
  const nn::Scope scope = root().of_segment(segment);
  const int64_t depth = segment - first_depth(c) + 1, last = c.num_layers - 1;
  std::optional<layers::Norm> final_norm;
  if (depth == 1)
    final_norm.emplace(scope / "final_norm", c.hidden_size, norm_options(c), build_.tp);
  return std::make_unique<MtpSegment>(scope / fmt::format("mtp.{}", depth - 1), c, depth,
                                      MtpSegment::Parts{.final_norm = std::move(final_norm),
                                                        .embedding = make_embedding(segment),
                                                        .experts = build_.experts,
                                                        .context = build_.context.of_layer(last)},
                                      build_.tp, rotary_.of_layer(c, last));
}

std::unique_ptr<nn::Segment> Gpt::make_head(int64_t segment) {
  const nn::Scope scope = root().of_segment(segment);
  const nn::ShardSpec table = parallel::vocab_spec(config_.vocab_size, config_.hidden_size);
  nn::Param& output = config_.untie_embeddings_and_output_weights
                          ? (scope / kOutputModule)
                                .param("weight", table, nn::Init::normal(config_.init_method_std))
                          : shared_param(segment, kWordTable, table, embedding_init(config_));
  LmHeadOptions options;
  for (int64_t depth = 1; depth <= config_.mtp_num_layers; ++depth)
    options.further.push_back({mtp_labels(depth), mtp_term(depth)});
  options.adapters = {scope / kOutputModule, output, nn::AdaptedUse::kOutput};
  options.norm = config_.mtp_num_layers == 0; // else the first depth has it
  return std::make_unique<LmHead>(scope / "final_norm", config_, output, build_.tp, options);
}

Gpt::Gpt(const ModelConfig& config, const ModelBuild& build)
    : Model(config, build), rotary_(config) {
  assemble([&](int64_t segment) -> std::unique_ptr<nn::Segment> {
    if (segment == 0) return std::make_unique<EmbeddingSegment>(make_embedding(segment));
    if (segment == head_of(config)) return make_head(segment);
    if (segment >= first_depth(config)) return make_depth(segment);
    return std::make_unique<LayerSegment>(
        root().of_segment(segment) / ("layers." + std::to_string(segment - 1)),
        layer_options(config, segment - 1), build.tp, rotary_.of_layer(config, segment - 1),
        build.experts, build.context.of_layer(segment - 1));
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
    if (c.learns_positions())
      cost.saved_bytes = static_cast<int64_t>(sizeof(int64_t)) * shape.tokens; // their numbers
    if (shape.tp > 1) cost.tp_all_reduce = {shape.element_bytes * shape.tokens * c.hidden_size, 1};
    return cost;
  }
  if (segment < head_of(c)) return MtpSegment::cost(c, segment - first_depth(c) + 1, shape);
  const int64_t statistics = c.normalization == Normalization::kLayerNorm ? 2 : 1,
                terms = 1 + c.mtp_num_layers;
  cost.forward_gemm_flops = 2.0 *
                            static_cast<double>(shape.head_rows.value_or(terms * shape.tokens)) *
                            static_cast<double>(c.hidden_size) *
                            static_cast<double>((c.vocab_size + shape.tp - 1) / shape.tp);
  // Each loss keeps its input's gradient. The final norm keeps its input and statistics; the last
  // depth's output is kept in its place.
  cost.saved_bytes = (1 + terms) * shape.element_bytes * shape.outer_tokens() * c.hidden_size;
  if (terms == 1) cost.saved_bytes += shape.acc_bytes * shape.outer_tokens() * statistics;
  if (shape.tp > 1) {
    cost.tp_all_reduce = {terms * (shape.element_bytes * shape.tokens * c.hidden_size +
                                   3 * shape.acc_bytes * shape.tokens),
                          static_cast<int>(4 * terms)};
  }
  return cost;
}

} // namespace pentatron::models
