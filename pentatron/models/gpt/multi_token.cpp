#include "pentatron/models/gpt/multi_token.h"

#include <ATen/ATen.h>

#include <fmt/format.h>

#include "pentatron/parallel/tensor/linear.h"

namespace pentatron::models {

namespace {

std::string ids_field(int64_t depth) {
  return fmt::format("mtp_{}_input_ids", depth);
}
std::string places_field(int64_t depth) {
  return fmt::format("mtp_{}_position_ids", depth);
}

} // namespace

std::string mtp_term(int64_t depth) {
  return fmt::format("mtp_{} loss", depth);
}
std::string mtp_labels(int64_t depth) {
  return fmt::format("mtp_{}_labels", depth);
}

std::vector<data::ShiftedField> mtp_fields(const ModelConfig& c) {
  std::vector<data::ShiftedField> fields;
  for (int64_t depth = 1; depth <= c.mtp_num_layers; ++depth) {
    fields.push_back({.name = ids_field(depth), .source = "input_ids", .places = depth});
    fields.push_back({.name = mtp_labels(depth), .source = "labels", .places = depth});
    if (c.learns_positions())
      fields.push_back({.name = places_field(depth), .source = "", .places = depth});
  }
  return fields;
}

MtpSegment::MtpSegment(const nn::Scope& scope, const ModelConfig& c, int64_t depth, Parts parts,
                       const parallel::TensorParallel& tp,
                       std::shared_ptr<const layers::RotaryTable> rotary)
    : name_(scope.prefix()), ids_(ids_field(depth)),
      places_(c.learns_positions() ? places_field(depth) : ""), term_(mtp_term(depth)),
      site_(site_behind_layers(c) + static_cast<uint32_t>(depth - 1)),
      final_norm_(std::move(parts.final_norm)), embedding_(std::move(parts.embedding)),
      embedding_norm_(scope / "enorm", c.hidden_size, norm_options(c), tp),
      hidden_norm_(scope / "hnorm", c.hidden_size, norm_options(c), tp),
      projection_(&scope.param("eh_proj.weight",
                               {.name = {},
                                .shape = {c.hidden_size, 2 * c.hidden_size},
                                .placements = parallel::token_wise(tp)},
                               nn::Init::normal(c.init_method_std))),
      layer_(scope / "layer", layer_options(c, c.num_layers + depth - 1), tp, std::move(rotary),
             nullptr, parts.experts, parts.context),
      norm_(scope / "final_norm", c.hidden_size, norm_options(c), tp) {
  projection_->multiplies = nn::ProductRows::kTokens;
}

nn::Segment::Output MtpSegment::forward(const std::vector<at::Tensor>& taken,
                                        const nn::ForwardContext& ctx) const {
  const at::Tensor before = final_norm_ ? final_norm_->forward(taken[0], ctx) : taken[0];
  const auto output = [&](const at::Tensor& x) -> Output {
    if (final_norm_) return {.flows = {before, x}, .loss = {}};
    return {.flows = {x}, .loss = {}};
  };
  if (!ctx.given_scale(term_)) return output({});
  const at::Tensor words =
      embedding_.forward(ctx.batch->field(ids_),
                         places_.empty() ? at::Tensor() : ctx.batch->field(places_), site_, ctx);
  const at::Tensor both =
      at::cat({embedding_norm_.forward(words, ctx), hidden_norm_.forward(before, ctx)}, /*dim=*/1);
  return output(norm_.forward(
      layer_.forward(nn::linear(both, *projection_, /*bias=*/nullptr, ctx), ctx), ctx));
}

nn::Cost MtpSegment::cost(const ModelConfig& c, int64_t depth, const nn::LayerShape& shape) {
  nn::Cost cost = layers::TransformerLayer::cost(layer_options(c, c.num_layers + depth - 1), shape);
  const int64_t row = shape.element_bytes * shape.outer_tokens() * c.hidden_size,
                statistics = c.normalization == Normalization::kLayerNorm ? 2 : 1;
  const int64_t norms = depth == 1 ? 4 : 3; // the first has that of the model, too
  cost.forward_gemm_flops += 4.0 * static_cast<double>(shape.tokens) *
                             static_cast<double>(c.hidden_size) *
                             static_cast<double>(c.hidden_size);
  cost.input_gemm_flops = 0; // the layer reads the product
  // Norms keep what they normalise, the product its input.
  cost.saved_bytes += norms * (row + shape.acc_bytes * shape.outer_tokens() * statistics) + 2 * row;
  if (shape.tp > 1) {
    cost.tp_all_reduce.bytes += shape.element_bytes * shape.tokens * c.hidden_size;
    cost.tp_all_reduce.count += 1;
  }
  return cost;
}

} // namespace pentatron::models
