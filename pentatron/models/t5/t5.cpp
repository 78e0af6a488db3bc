#include "pentatron/models/t5/t5.h"

#include <ATen/ATen.h>

#include <cmath>
#include <numeric>

#include "pentatron/base/planted_bug.h"
#include "pentatron/parallel/tensor/vocab.h"

namespace pentatron::models {

namespace {

enum Stream : int { kEncoderStream, kDecoderStream };
enum Flow : int { kEncoderHidden, kMemory, kDecoderHidden };
enum Kind : int {
  kEncoderEmbedding,
  kEncoderLayer,
  kEncoderNorm,
  kDecoderEmbedding,
  kDecoderLayer,
  kHead
};

/// The numbers of the segments.
struct Numbers {
  explicit Numbers(const ModelConfig& c)
      : norm(c.num_layers + 1), decoder(norm + 1), head(decoder + c.decoder_layers() + 1) {}
  Kind kind_of(int64_t segment) const {
    if (segment == 0) return kEncoderEmbedding;
    if (segment < norm) return kEncoderLayer;
    if (segment == norm) return kEncoderNorm;
    if (segment == decoder) return kDecoderEmbedding;
    return segment < head ? kDecoderLayer : kHead;
  }
  int64_t norm, decoder, head;
};

std::vector<int64_t> range(int64_t begin, int64_t end) {
  std::vector<int64_t> numbers(static_cast<size_t>(end - begin));
  std::iota(numbers.begin(), numbers.end(), begin);
  return numbers;
}

/// Sites of dropout: 0 is the encoder's embedding, eight for each layer, and the rest behind them.
constexpr int64_t kSitesOfLayer = 8;
uint32_t site_of_layer(int64_t layer, int64_t which) {
  return static_cast<uint32_t>(1 + kSitesOfLayer * layer + which);
}
uint32_t site_behind(const ModelConfig& c, int64_t which) {
  return site_of_layer(c.num_layers + c.decoder_layers(), which);
}

layers::RelativeBiasOptions bias_options(const ModelConfig& c, bool bidirectional) {
  return {.heads = c.num_attention_heads,
          .buckets = c.relative_attention_num_buckets,
          .max_distance = c.relative_attention_max_distance,
          .bidirectional = bidirectional,
          .init_std = c.init_method_std};
}

/// Layer `index` of both sides together.
layers::TransformerLayerOptions t5_layer(const ModelConfig& c, int64_t index) {
  const bool decodes = index >= c.num_layers;
  layers::TransformerLayerOptions o = layer_options(c, 0);
  o.attention.mask = decodes ? layers::AttentionMask::kCausal : layers::AttentionMask::kFull;
  o.attention.dropout_site = site_of_layer(index, 0);
  o.dropout_site = site_of_layer(index, 1); // and 2
  o.mlp.dropout = c.hidden_dropout;
  o.mlp.dropout_site = site_of_layer(index, 3);
  if (!decodes) return o;
  o.cross_dropout_site = site_of_layer(index, 4);
  o.cross = layers::CrossAttentionOptions{.hidden = o.attention.hidden,
                                          .heads = o.attention.heads,
                                          .kv_heads = o.attention.kv_heads,
                                          .head_size = o.attention.head_size,
                                          .qkv_bias = o.attention.qkv_bias,
                                          .proj_bias = o.attention.proj_bias,
                                          .scale = o.attention.scale,
                                          .dropout = o.attention.dropout,
                                          .dropout_site = site_of_layer(index, 5),
                                          .init_std = o.attention.init_std,
                                          .proj_init_std = o.attention.proj_init_std};
  return o;
}

class WordSegment final : public nn::Segment {
 public:
  WordSegment(std::string name, const char* field, nn::Param& words, double dropout, uint32_t site,
              const parallel::TensorParallel& tp)
      : name_(std::move(name)), field_(field), words_(words, nullptr, tp), dropout_(dropout),
        site_(site) {}
  std::string name() const override { return name_; }
  Output forward(const std::vector<at::Tensor>&, const nn::ForwardContext& ctx) const override {
    const at::Tensor x = words_.forward(ctx.batch->field(field_), ctx);
    return {.flows = {nn::dropout(x, {.p = dropout_, .site = site_}, ctx)}, .loss = {}};
  }

 private:
  std::string name_;
  const char* field_;
  parallel::VocabParallelEmbedding words_;
  double dropout_;
  uint32_t site_;
};

/// What the decoder's layers read.
class MemorySegment final : public nn::Segment {
 public:
  MemorySegment(const nn::Scope& scope, const ModelConfig& c, const parallel::TensorParallel& tp)
      : norm_(scope, c.hidden_size, norm_options(c), tp), dropout_{.p = c.hidden_dropout,
                                                                   .site = site_behind(c, 0)},
        tp_(tp) {}
  std::string name() const override { return "encoder.final_norm"; }
  Output forward(const std::vector<at::Tensor>& taken,
                 const nn::ForwardContext& ctx) const override {
    const at::Tensor x = nn::dropout(norm_.forward(taken[0], ctx), dropout_, ctx);
    if (ctx.wanted.hidden) ctx.deposit(kEncoderLastHiddenState, parallel::gathered_tokens(x, tp_));
    return {.flows = {x}, .loss = {}};
  }

 private:
  layers::Norm norm_;
  nn::DropoutSite dropout_;
  parallel::TensorParallel tp_;
};

class T5Layer final : public nn::Segment {
 public:
  T5Layer(const nn::Scope& scope, const layers::TransformerLayerOptions& options,
          const parallel::TensorParallel& tp, std::shared_ptr<const layers::RelativeBias> bias)
      : name_(scope.prefix()), layer_(scope, options, tp, nullptr, std::move(bias)) {}
  std::string name() const override { return name_; }
  bool recomputable() const override { return true; }
  Output forward(const std::vector<at::Tensor>& taken,
                 const nn::ForwardContext& ctx) const override {
    if (taken.size() == 1) return {.flows = {layer_.forward(taken[0], ctx)}, .loss = {}};
    return {.flows = {layer_.forward(taken[0], taken[1], ctx.batch->layouts[kEncoderStream], ctx)},
            .loss = {}};
  }

 private:
  std::string name_;
  layers::TransformerLayer layer_;
};

} // namespace

ModelSpec T5::spec_of(const ModelConfig& c) {
  const Numbers numbers(c);
  ModelSpec spec{
      .chosen_by = "model.type=t5",
      .streams = {"encoder", "decoder"},
      .flows = {{.name = "encoder hidden", .stream = kEncoderStream, .width = c.hidden_size},
                {.name = "memory", .stream = kEncoderStream, .width = c.hidden_size},
                {.name = "decoder hidden", .stream = kDecoderStream, .width = c.hidden_size}},
      .segments = {},
      .fields = {{.name = "input_ids", .stream = "encoder", .limit = c.vocab_size},
                 data::label_field("decoder"),
                 {.name = "decoder_input_ids",
                  .stream = "decoder",
                  .fill = static_cast<double>(c.decoder_pad_token.value_or(c.decoder_start_token)),
                  .limit = c.vocab_size,
                  .start_token = c.decoder_start_token}},
      .losses = {{.name = kLmLoss, .labels = "labels"}},
      .shared = {{"encoder.relative_bias.weight", range(1, numbers.norm)},
                 {"decoder.relative_bias.weight", range(numbers.decoder + 1, numbers.head)},
                 {kWordTable, {0, numbers.decoder}}},
      .results = {{.name = kLogits, .stream = kDecoderStream},
                  {.name = kLastHiddenState, .stream = kDecoderStream},
                  {.name = kEncoderLastHiddenState, .stream = kEncoderStream}},
      .generates = Generates::kAnswer};
  spec.fields[1].limit = c.vocab_size;
  if (!c.untie_embeddings_and_output_weights) spec.shared.back().segments.push_back(numbers.head);
  const auto add = [&](std::string name, char letter, Kind kind, Stream stream,
                       std::vector<int> takes, std::vector<int> gives) {
    spec.segments.push_back({.name = std::move(name),
                             .letter = letter,
                             .is_layer = letter == 't',
                             .recomputed = letter == 't',
                             .kind = kind,
                             .stream = stream,
                             .takes = std::move(takes),
                             .gives = std::move(gives)});
  };
  add("encoder embedding", 'E', kEncoderEmbedding, kEncoderStream, {}, {kEncoderHidden});
  for (int64_t i = 0; i < c.num_layers; ++i)
    add("encoder layer " + std::to_string(i), 't', kEncoderLayer, kEncoderStream, {kEncoderHidden},
        {kEncoderHidden});
  add("encoder norm", 'N', kEncoderNorm, kEncoderStream, {kEncoderHidden}, {kMemory});
  add("decoder embedding", 'D', kDecoderEmbedding, kDecoderStream, {}, {kDecoderHidden});
  for (int64_t i = 0; i < c.decoder_layers(); ++i)
    add("decoder layer " + std::to_string(i), 't', kDecoderLayer, kDecoderStream,
        {kDecoderHidden, kMemory}, {kDecoderHidden});
  add("head", 'L', kHead, kDecoderStream, {kDecoderHidden}, {});
  spec.whole_samples = spec.chosen_by;
  return spec;
}

std::shared_ptr<const layers::RelativeBias> T5::bias(Side side, int64_t segment) {
  const bool encodes = side == Side::kEncoder;
  const layers::RelativeBiasOptions options = bias_options(config_, encodes);
  nn::Param& weight = shared_param(
      segment, encodes ? "encoder.relative_bias.weight" : "decoder.relative_bias.weight",
      layers::RelativeBias::spec(options), nn::Init::normal(options.init_std));
  auto& made = biases_[static_cast<int>(side)];
  if (made == nullptr) made = std::make_shared<const layers::RelativeBias>(weight, options);
  return made;
}

std::unique_ptr<nn::Segment> T5::make_segment(int64_t segment) {
  const Numbers numbers(config_);
  const nn::Scope scope = root().of_segment(segment);
  const nn::ShardSpec table = parallel::vocab_spec(config_.vocab_size, config_.hidden_size);
  const auto words = [&]() -> nn::Param& {
    return shared_param(segment, kWordTable, table, embedding_init(config_));
  };
  const double dropout = config_.embedding_dropout.value_or(config_.hidden_dropout);
  switch (numbers.kind_of(segment)) {
  case kEncoderEmbedding:
    return std::make_unique<WordSegment>("encoder.embedding", "input_ids", words(), dropout, 0,
                                         build_.tp);
  case kEncoderLayer:
    return std::make_unique<T5Layer>(scope / ("encoder.layers." + std::to_string(segment - 1)),
                                     t5_layer(config_, segment - 1), build_.tp,
                                     bias(Side::kEncoder, segment));
  case kEncoderNorm:
    return std::make_unique<MemorySegment>(scope / "encoder.final_norm", config_, build_.tp);
  case kDecoderEmbedding:
    return std::make_unique<WordSegment>("decoder.embedding", "decoder_input_ids", words(), dropout,
                                         site_behind(config_, 1), build_.tp);
  case kDecoderLayer: {
    const int64_t index = segment - numbers.decoder - 1;
    return std::make_unique<T5Layer>(scope / ("decoder.layers." + std::to_string(index)),
                                     t5_layer(config_, config_.num_layers + index), build_.tp,
                                     bias(Side::kDecoder, segment));
  }
  case kHead:
    break;
  }
  nn::Param& output = config_.untie_embeddings_and_output_weights
                          ? (scope / kOutputModule)
                                .param("weight", table, nn::Init::normal(config_.init_method_std))
                          : words();
  const double width = static_cast<double>(config_.hidden_size);
  return std::make_unique<LmHead>(
      scope / "decoder.final_norm", config_, output, build_.tp,
      LmHeadOptions{.dropout = {.p = config_.hidden_dropout, .site = site_behind(config_, 2)},
                    .scale = config_.scale_decoder_outputs ? 1 / std::sqrt(width) : 1,
                    .adapters = {scope / kOutputModule, output, nn::AdaptedUse::kOutput}});
}

T5::T5(const ModelConfig& config, const ModelBuild& build) : Model(config, build) {
  assemble([&](int64_t segment) { return make_segment(segment); });
}

nn::Cost T5::segment_cost(const ModelConfig& c, const std::vector<nn::LayerShape>& shapes,
                          int64_t segment) {
  const Kind kind = Numbers(c).kind_of(segment);
  const nn::LayerShape& shape = shapes[kind <= kEncoderNorm ? kEncoderStream : kDecoderStream];
  if (kind == kEncoderLayer) return layers::TransformerLayer::cost(t5_layer(c, 0), shape);
  if (kind == kDecoderLayer)
    return layers::TransformerLayer::cost(t5_layer(c, c.num_layers), shape);
  nn::Cost cost;
  const int64_t row = shape.element_bytes * shape.tokens * c.hidden_size;
  if (kind == kEncoderEmbedding || kind == kDecoderEmbedding) {
    if (shape.tp > 1) cost.tp_all_reduce = {row, 1};
    return cost;
  }
  const int64_t outer = shape.element_bytes * shape.outer_tokens() * c.hidden_size;
  cost.saved_bytes = outer + shape.acc_bytes * shape.outer_tokens();
  if (kind == kEncoderNorm) return cost;
  cost.saved_bytes += outer; // the gradient behind the loss
  cost.forward_gemm_flops = 2.0 * static_cast<double>(shape.head_rows.value_or(shape.tokens)) *
                            static_cast<double>(c.hidden_size) *
                            static_cast<double>((c.vocab_size + shape.tp - 1) / shape.tp);
  if (shape.tp > 1) cost.tp_all_reduce = {row + 3 * shape.acc_bytes * shape.tokens, 4};
  return cost;
}

} // namespace pentatron::models
