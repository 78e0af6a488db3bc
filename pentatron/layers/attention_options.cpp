#include "pentatron/layers/attention_options.h"

#include <cmath>

#include "pentatron/base/planted_bug.h"

namespace pentatron::layers {

CoreAttentionOptions core_attention_options(const nn::Scope& scope, const AttentionOptions& options,
                                            const parallel::TensorParallel& tp) {
  CoreAttentionOptions core = {
      .mask = options.mask,
      .scale = options.scale > 0 ? options.scale
                                 : 1.0 / std::sqrt(static_cast<double>(options.head_size)),
      .window = options.window,
      .cap = options.score_cap,
      .softmax = options.softmax,
      .dropout = options.dropout,
      .site = options.dropout_site,
      .head_offset =
          planted("attention_dropout_by_local_head") ? 0 : tp.rank() * (options.heads / tp.size()),
      .name = scope.prefix()};
  if (options.softmax == SoftmaxKind::kLearnable) {
    core.sinks = &scope.param(
        "sinks",
        {.name = {}, .shape = {options.heads}, .placements = {{"tp", nn::Placement::shard(0)}}},
        nn::Init::constant(0));
  }
  return core;
}

namespace {

/// Of one direction; documents are of about one length.
double squares_in_window(double documents, double tokens, double squares, double window) {
  if (tokens <= window * documents) return squares;
  return window * (2 * tokens - window * documents);
}

} // namespace

double visible_squares(const AttentionOptions& o, const nn::LayerShape& shape) {
  const auto squares = static_cast<double>(shape.squared_lengths),
             tokens = static_cast<double>(shape.tokens), window = static_cast<double>(o.window);
  const double directions = o.mask == AttentionMask::kFull ? 2 : 1;
  if (o.window == 0 || squares == 0) return directions * squares;
  if (shape.lengths.empty())
    return directions * squares_in_window(tokens * tokens / squares, tokens, squares, window);
  double sum = 0;
  for (const DocumentLengths::Class& of : shape.lengths.classes())
    sum += squares_in_window(static_cast<double>(of.documents), static_cast<double>(of.tokens),
                             static_cast<double>(of.squares), window);
  return directions * sum;
}

} // namespace pentatron::layers
