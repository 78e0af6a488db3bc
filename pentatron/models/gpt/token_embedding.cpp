#include "pentatron/models/gpt/token_embedding.h"

#include <ATen/ATen.h>

#include "pentatron/base/planted_bug.h"
#include "pentatron/nn/host_copies.h"
#include "pentatron/nn/ops/ops.h"

namespace pentatron::models {

TokenEmbedding::TokenEmbedding(nn::Param& words, nn::Param* positions, const ModelConfig& config,
                               const parallel::TensorParallel& tp,
                               const parallel::VocabAdapters& adapters)
    : words_(words, nullptr, tp, adapters), with_positions_(words, positions, tp, adapters),
      positions_(positions), scales_(config.embedding_multiplier.has_value()),
      dropout_(config.embedding_dropout.value_or(config.hidden_dropout)) {
  if (scales_)
    multiplier_ = nn::host_value<double>(
        at::scalar_tensor(*config.embedding_multiplier, at::dtype(words.dtype())));
}

at::Tensor TokenEmbedding::forward(const at::Tensor& ids, const at::Tensor& places, uint32_t site,
                                   const nn::ForwardContext& ctx) const {
  const bool together = !scales_ && !places.defined();
  at::Tensor x = (together ? with_positions_ : words_).forward(ids, ctx);
  if (multiplier_ != 1) x = x * multiplier_;
  if (positions_ != nullptr && !together) {
    const bool own = !places.defined() || (ctx.layout->outer_size >= 0 &&
                                           planted("further_tokens_at_their_readers_positions"));
    const at::Tensor& rows = own ? ctx.layout->positions : places;
    x = x + nn::embedding(ctx.layout->outer(rows).to(at::kLong), *positions_, nullptr, 0, ctx);
  }
  return nn::dropout(x, {.p = dropout_, .site = site}, ctx);
}

} // namespace pentatron::models
