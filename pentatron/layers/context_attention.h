/// Self-attention with context parallelism, where ranks hold different tokens of the same samples.
///
/// Shapes: those of core_attention, over this rank's tokens; ctx.layout says which they are. Causal
/// or full masks, without bias. Results do not depend on the number of ranks but for rounding:
/// queries see the keys of all ranks, dropout is drawn by the place of query and key in their
/// sample.
///
/// Blocks (queries of a chunk, keys of a chunk) are computed alone and merged by their log-sum-exp
/// in the accumulate type, in order of arrival; sinks enter once, at the end. Kept for backward are
/// this rank's q, k, v, out and log-sum-exp: keys and values of other ranks come again. Sums of
/// gradients of keys and values travel in the accumulate type. Latents travel in the place of keys
/// and values if they are smaller, and each rank makes keys and values of them.
///
/// Collectives: forward and backward by parallel::ContextWay. `heads`: an all-to-all each of q, k,
/// v and out; in backward of these and their gradients. `blocks`: a ring passes k and v on, in
/// backward with their gradients; or an all-gather of k and v, in backward again, and a
/// reduce-scatter of their gradients. Under a window a ring may become transfers from the ranks
/// whose chunks a rank sees, where all ranks together see at most half of what a ring passes on.
/// Source: Liu et al. 2023 (arXiv:2310.01889); Jacobs et al. 2023 (arXiv:2309.14509); Fang and Zhao
/// 2024 (arXiv:2405.07719) for both together.
#pragma once

#include "pentatron/layers/core_attention.h"
#include "pentatron/layers/latent_keys.h"
#include "pentatron/parallel/context/context_parallel.h"

namespace pentatron::layers {

/// -> [T, n e]. Throws ShapeError if the ranks of way.heads do not divide n and g.
at::Tensor context_attention(const AttentionOperands& x, const CoreAttentionOptions& options,
                             const parallel::ContextWay& way, const nn::ForwardContext& ctx);

/// Whether a layer has latents travel rather than keys and values.
bool latents_travel(const LatentKeys& keys, const parallel::ContextWay& way);
/// The same of queries [T, n, p + d] and `latents` [T, 1, r + d], which all tensor ranks have: the
/// caller sums their gradients.
at::Tensor context_attention(const at::Tensor& q, const at::Tensor& latents, const LatentKeys& keys,
                             const CoreAttentionOptions& options, const parallel::ContextWay& way,
                             const nn::ForwardContext& ctx);

} // namespace pentatron::layers
