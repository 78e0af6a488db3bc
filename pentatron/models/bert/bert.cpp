#include "pentatron/models/bert/bert.h"

#include <ATen/ATen.h>

#include <limits>
#include <optional>

#include <fmt/format.h>

#include "pentatron/layers/sample_head.h"
#include "pentatron/nn/record.h"
#include "pentatron/parallel/tensor/vocab.h"

namespace pentatron::models {

namespace {

constexpr const char* kMaskedLoss = "lm loss";
constexpr const char* kPairLoss = "sop loss";
constexpr const char* kSampleLoss = "label loss";
constexpr const char* kTokenTypes = "token_type_ids";

bool is_masked_lm(const ModelConfig& c) {
  return c.head == ModelHead::kMaskedLm;
}
bool is_pair(const ModelConfig& c) {
  return is_masked_lm(c) && c.binary_head;
}
bool judges_samples(const ModelConfig& c) {
  return c.head == ModelHead::kClassification || c.head == ModelHead::kRegression;
}
/// Post-norm layers end in a norm, and begin behind one.
bool is_post_norm(const ModelConfig& c) {
  return c.norm_placement == NormPlacement::kPost;
}
bool is_tied(const ModelConfig& c) {
  return is_masked_lm(c) && !c.untie_embeddings_and_output_weights;
}

class EncoderEmbedding final : public nn::Segment {
 public:
  struct Tables {
    nn::Param* words = nullptr;
    nn::Param *positions = nullptr, *token_types = nullptr; ///< null: none
  };
  EncoderEmbedding(const nn::Scope& scope, const Tables& tables, const ModelConfig& config,
                   const parallel::TensorParallel& tp)
      : tables_(tables), words_(*tables.words, nullptr, tp,
                                {scope / "word", *tables.words, nn::AdaptedUse::kEmbedding}),
        position_offset_(config.position_offset),
        dropout_(config.embedding_dropout.value_or(config.hidden_dropout)) {
    if (is_post_norm(config))
      norm_.emplace(scope / "norm", config.hidden_size, norm_options(config), tp);
  }
  std::string name() const override { return "embedding"; }
  Output forward(const std::vector<at::Tensor>&, const nn::ForwardContext& ctx) const override {
    at::Tensor x = words_.forward(ctx.batch->field("input_ids"), ctx);
    const auto add = [&](nn::Param* table, const at::Tensor& rows) {
      x = x + nn::embedding(ctx.layout->outer(rows), *table, nullptr, 0, ctx);
    };
    if (tables_.token_types != nullptr) add(tables_.token_types, ctx.batch->field(kTokenTypes));
    if (tables_.positions != nullptr)
      add(tables_.positions, positions(*ctx.layout, ctx.batch->field("input_ids")));
    if (norm_) x = norm_->forward(x, ctx);
    return {.flows = {nn::dropout(x, {.p = dropout_, .site = 0}, ctx)}, .loss = {}};
  }

 private:
  /// With an offset (RoBERTa) they count the tokens of a document that are no padding; padding has
  /// the id, and gets the row, before the first. Positions that come with the data are rows.
  at::Tensor positions(const nn::SequenceLayout& layout, const at::Tensor& ids) const {
    const nn::NoAutograd guard;
    at::Tensor rows = layout.positions.to(at::kLong);
    if (position_offset_ == 0 || layout.positions_given) return rows;
    rows = rows + position_offset_;
    const at::Tensor padding = ids.eq(position_offset_ - 1);
    for (size_t i = 0; i + 1 < layout.document_starts.size(); ++i) {
      const int64_t begin = layout.document_starts[i];
      const int64_t tokens = layout.document_starts[i + 1] - begin;
      rows.narrow(0, begin, tokens).sub_(padding.narrow(0, begin, tokens).cumsum(0));
    }
    return rows.clamp_min_(0).masked_fill_(padding, position_offset_ - 1);
  }

  Tables tables_;
  parallel::VocabParallelEmbedding words_;
  std::optional<layers::Norm> norm_;
  int64_t position_offset_;
  double dropout_;
};

/// The masked tokens: dense, activation, norm, the vocabulary. Source: Devlin et al. 2019.
class MaskedLmHead {
 public:
  MaskedLmHead(const nn::Scope& scope, const ModelConfig& config, nn::Param& words,
               const parallel::TensorParallel& tp, const parallel::VocabAdapters& adapters)
      : activation_(layer_options(config, 0).mlp.activation),
        dense_(scope / "dense",
               {.in = config.hidden_size,
                .out = config.hidden_size,
                .init_std = config.init_method_std},
               tp),
        norm_(scope / "norm", config.hidden_size, norm_options(config), tp),
        head_(words,
              &scope.param("bias", parallel::vocab_bias_spec(config.vocab_size),
                           nn::Init::constant(0)),
              tp, 0, adapters) {}
  const parallel::VocabHead& vocabulary() const { return head_; }
  at::Tensor transform(const at::Tensor& x, const nn::ForwardContext& ctx) const {
    const at::Tensor y = dense_.forward(x, ctx);
    return norm_.forward(nn::activation(y, activation_, /*gated=*/false), ctx);
  }

 private:
  kernels::Activation activation_;
  parallel::WholeLinear dense_;
  layers::Norm norm_;
  parallel::VocabHead head_;
};

class EncoderHead final : public nn::Segment {
 public:
  struct Parts {
    std::optional<layers::Norm> norm;
    std::optional<MaskedLmHead> masked;
    std::optional<layers::Pooler> pooler;
    std::optional<layers::SampleHead> pair, sample;
    bool regression = false;
  };
  EncoderHead(Parts parts, const parallel::TensorParallel& tp)
      : parts_(std::move(parts)), tp_(tp) {}
  std::string name() const override { return "head"; }
  Output forward(const std::vector<at::Tensor>& taken,
                 const nn::ForwardContext& ctx) const override {
    const at::Tensor x = parts_.norm ? parts_.norm->forward(taken[0], ctx) : taken[0];
    if (ctx.wanted.hidden) ctx.deposit(kLastHiddenState, parallel::gathered_tokens(x, tp_));
    at::Tensor loss;
    const auto add = [&](const at::Tensor& part) { loss = loss.defined() ? loss + part : part; };
    const auto labelled = [&](const char* field) {
      return ctx.wanted.loss && ctx.batch->fields.contains(field);
    };
    if (parts_.masked && (ctx.wanted.logits || labelled("labels"))) {
      const at::Tensor y = parts_.masked->transform(x, ctx);
      const parallel::VocabHead& head = parts_.masked->vocabulary();
      if (ctx.wanted.logits) ctx.deposit(kLogits, head.logits(y, ctx.wanted.logit_rows, ctx));
      if (labelled("labels")) add(head.loss(y, "labels", kMaskedLoss, ctx));
    }
    if (!parts_.pooler) return {.flows = {}, .loss = loss};
    const at::Tensor pooled = parts_.pooler->forward(layers::first_tokens(x, tp_, ctx), ctx);
    if (ctx.wanted.hidden) ctx.deposit(kPoolerOutput, pooled.detach());
    if (parts_.pair) {
      const at::Tensor y = parts_.pair->logits(pooled, ctx);
      if (ctx.wanted.logits) ctx.deposit(kPairLogits, y.detach());
      if (labelled("next_sentence_label"))
        add(parts_.pair->class_loss(y, ctx.batch->field("next_sentence_label"), ctx));
    }
    if (parts_.sample) {
      const at::Tensor y = parts_.sample->logits(pooled, ctx);
      if (ctx.wanted.logits) ctx.deposit(kLogits, y.detach());
      if (labelled("labels")) {
        const at::Tensor& labels = ctx.batch->field("labels");
        add(parts_.regression ? parts_.sample->squared_loss(y, labels, ctx)
                              : parts_.sample->class_loss(y, labels, ctx));
      }
    }
    return {.flows = {}, .loss = loss};
  }

 private:
  Parts parts_;
  parallel::TensorParallel tp_;
};

std::vector<data::BatchField> fields_of(const ModelConfig& c) {
  const bool learned = c.position_embedding_type == PositionEmbedding::kLearnedAbsolute;
  std::vector<data::BatchField> fields = {{.name = "input_ids",
                                           .limit = c.vocab_size,
                                           .positions = learned ? c.max_position_embeddings : 0}};
  if (c.num_tokentypes > 0)
    fields.push_back({.name = kTokenTypes, .limit = c.num_tokentypes, .absent = 0});
  const auto label = [&](std::string stream, std::string name, int64_t limit) {
    fields.push_back(data::label_field(std::move(stream), std::move(name)));
    fields.back().limit = limit;
  };
  if (is_masked_lm(c)) label("tokens", "labels", c.vocab_size);
  if (is_pair(c)) label("", "next_sentence_label", 2);
  if (c.head == ModelHead::kClassification) label("", "labels", c.num_labels);
  if (c.head == ModelHead::kRegression) {
    constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
    fields.push_back({.name = "labels",
                      .stream = "",
                      .type = data::FieldType::kFloat64,
                      .fill = kNone,
                      .none = kNone});
  }
  return fields;
}

} // namespace

ModelSpec Bert::spec_of(const ModelConfig& config) {
  const int64_t head = config.num_layers + 1;
  ModelSpec spec{.chosen_by = fmt::format("model.type=bert with model.head={}",
                                          config::to_string(config.head)),
                 .streams = {"tokens"},
                 .flows = {{.name = "hidden", .width = config.hidden_size}},
                 .segments = stack_of_layers(config.num_layers),
                 .fields = fields_of(config),
                 .losses = {},
                 .shared = {},
                 .results = {{.name = kLastHiddenState}}};
  if (is_tied(config)) spec.shared = {{kWordTable, {0, head}}};
  if (is_masked_lm(config)) {
    spec.losses.push_back({.name = kMaskedLoss, .labels = "labels", .accuracy = true});
    spec.results.push_back({.name = kLogits});
  }
  if (is_pair(config)) {
    spec.losses.push_back({.name = kPairLoss, .labels = "next_sentence_label", .accuracy = true});
    spec.results.push_back({.name = kPairLogits, .stream = kPerSample});
  }
  if (judges_samples(config)) {
    const bool classes = config.head == ModelHead::kClassification;
    spec.scores = classes ? SampleScores::kClasses : SampleScores::kNumbers;
    spec.losses.push_back({.name = kSampleLoss, .labels = "labels", .accuracy = classes});
    spec.results.push_back({.name = kLogits, .stream = kPerSample});
  }
  if (config.pools()) {
    spec.results.push_back({.name = kPoolerOutput, .stream = kPerSample});
    spec.whole_samples = judges_samples(config) ? spec.chosen_by : "model.binary_head=true";
  }
  if (config.position_offset > 0) // positions count the tokens of a document
    spec.whole_samples = fmt::format("model.position_offset={}", config.position_offset);
  return spec;
}

std::unique_ptr<nn::Segment> Bert::make_embedding() {
  const nn::Scope scope = root().of_segment(0);
  const auto table = [&](const char* name, int64_t rows) {
    return &scope.param(name,
                        {.name = {},
                         .shape = {rows, config_.hidden_size},
                         .table = true,
                         .placements = parallel::token_wise(build_.tp)},
                        embedding_init(config_));
  };
  const nn::ShardSpec words = parallel::vocab_spec(config_.vocab_size, config_.hidden_size);
  EncoderEmbedding::Tables tables;
  tables.words = is_tied(config_) ? &shared_param(0, kWordTable, words, embedding_init(config_))
                                  : &scope.param(kWordTable, words, embedding_init(config_));
  tables.words->padding_row = config_.padding_token;
  if (config_.position_embedding_type == PositionEmbedding::kLearnedAbsolute) {
    tables.positions = table("embedding.position.weight", config_.max_position_embeddings);
    tables.positions->padding_row = config_.position_offset - 1;
  }
  if (config_.num_tokentypes > 0)
    tables.token_types = table("embedding.token_type.weight", config_.num_tokentypes);
  return std::make_unique<EncoderEmbedding>(scope / "embedding", tables, config_, build_.tp);
}

std::unique_ptr<nn::Segment> Bert::make_head() {
  const int64_t segment = config_.num_layers + 1, h = config_.hidden_size;
  const nn::Scope scope = root().of_segment(segment);
  EncoderHead::Parts parts;
  if (!is_post_norm(config_))
    parts.norm.emplace(scope / "final_norm", h, norm_options(config_), build_.tp);
  if (is_masked_lm(config_)) {
    const nn::ShardSpec words = parallel::vocab_spec(config_.vocab_size, h);
    nn::Param& output =
        is_tied(config_) ? shared_param(segment, kWordTable, words, embedding_init(config_))
                         : (scope / kOutputModule)
                               .param("weight", words, nn::Init::normal(config_.init_method_std));
    parts.masked.emplace(
        scope / "lm_head", config_, output, build_.tp,
        parallel::VocabAdapters(scope / kOutputModule, output, nn::AdaptedUse::kOutput));
  }
  if (config_.pools())
    parts.pooler.emplace(scope / "pooler", h, config_.init_method_std, build_.tp);
  const auto sample_head = [&](const char* name, int64_t outputs, double dropout,
                               const char* term) {
    return layers::SampleHead(scope / name,
                              {.hidden = h,
                               .outputs = outputs,
                               .dropout = dropout,
                               .dropout_site = static_cast<uint32_t>(1 + 3 * config_.num_layers),
                               .init_std = config_.init_method_std,
                               .term = term});
  };
  if (is_pair(config_)) parts.pair.emplace(sample_head("binary_head", 2, 0, kPairLoss));
  if (judges_samples(config_)) {
    parts.regression = config_.head == ModelHead::kRegression;
    parts.sample.emplace(sample_head("classifier", parts.regression ? 1 : config_.num_labels,
                                     config_.classifier_dropout.value_or(config_.hidden_dropout),
                                     kSampleLoss));
  }
  return std::make_unique<EncoderHead>(std::move(parts), build_.tp);
}

Bert::Bert(const ModelConfig& config, const ModelBuild& build)
    : Model(config, build), rotary_(config) {
  assemble([&](int64_t segment) -> std::unique_ptr<nn::Segment> {
    if (segment == 0) return make_embedding();
    if (segment == config.num_layers + 1) return make_head();
    return std::make_unique<LayerSegment>(
        root().of_segment(segment) / ("layers." + std::to_string(segment - 1)),
        layer_options(config, segment - 1), build.tp, rotary_.of_layer(config, segment - 1),
        parallel::ExpertParallel{}, build.context.of_layer(segment - 1));
  });
}

void Bert::finish(at::Device device, const std::vector<int64_t>& longest) {
  require_positions(config_, longest[0]);
  rotary_.fill(config_, longest[0], build_.dtype, device);
}

nn::Cost Bert::segment_cost(const ModelConfig& c, const std::vector<nn::LayerShape>& shapes,
                            int64_t segment) {
  const nn::LayerShape& shape = shapes[0];
  if (segment > 0 && segment <= c.num_layers)
    return layers::TransformerLayer::cost(layer_options(c, segment - 1), shape);
  nn::Cost cost;
  const int64_t row = shape.element_bytes * shape.tokens * c.hidden_size;
  const int64_t outer = shape.element_bytes * shape.outer_tokens() * c.hidden_size,
                norm = outer + 2 * shape.acc_bytes * shape.outer_tokens();
  if (segment == 0) {
    if (is_post_norm(c)) cost.saved_bytes = norm;
    if (shape.tp > 1) cost.tp_all_reduce = {row, 1};
    return cost;
  }
  if (!is_post_norm(c)) cost.saved_bytes += norm;
  if (is_masked_lm(c)) {
    const auto h = static_cast<double>(c.hidden_size), tokens = static_cast<double>(shape.tokens),
               rows = static_cast<double>(shape.head_rows.value_or(shape.tokens)),
               vocabulary = static_cast<double>((c.vocab_size + shape.tp - 1) / shape.tp);
    cost.forward_gemm_flops = 2.0 * h * (tokens * h + rows * vocabulary);
    if (is_post_norm(c)) cost.input_gemm_flops = 2.0 * h * tokens * h;
    // Kept: inputs of dense, activation and norm, and the gradient behind the loss.
    cost.saved_bytes += 3 * outer + norm;
    if (shape.tp > 1) cost.tp_all_reduce = {row + 3 * shape.acc_bytes * shape.tokens, 4};
  }
  return cost;
}

} // namespace pentatron::models
