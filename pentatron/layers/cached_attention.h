/// Attention of new tokens to all tokens of their sequences, in generation.
#pragma once

#include <ATen/core/Tensor.h>

#include "pentatron/layers/core_attention.h"
#include "pentatron/nn/kv_cache.h"

namespace pentatron::layers {

/// Adds keys and values of the new tokens to ctx.cache, under the address `layer`, and attends to
/// all tokens in it. Shapes as in core_attention(), causal; the bias has columns for the distances
/// of all kept tokens. Tokens without a sequence give anything.
at::Tensor cached_attention(const AttentionOperands& x, const CoreAttentionOptions& options,
                            const void* layer, const nn::ForwardContext& ctx);

/// Attention of the new tokens' queries q [T, n, d] to their sequences' memories, which ctx.cache
/// has under the address `layer` -> [T, n d]. Tokens without a sequence give anything.
at::Tensor attention_to_memory(const at::Tensor& q, const CoreAttentionOptions& options,
                               const void* layer, const nn::ForwardContext& ctx);

/// Like cached_attention(), if every token has one key for all heads in ctx.cache (`kept`), whose
/// first `value_size` features are its value: q [T, n, d] -> [T, n value_size].
at::Tensor attention_to_latents(const at::Tensor& q, const nn::KvCache::Layer& kept,
                                int64_t value_size, const CoreAttentionOptions& options,
                                const nn::ForwardContext& ctx);

} // namespace pentatron::layers
