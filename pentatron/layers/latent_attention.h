/// Multi-head latent attention: keys and values of all heads are computed from one small latent
/// vector per token, and all heads share the part of the keys that has a position.
///
/// Shapes, T = tokens, h = hidden, n = heads, t = tp size, r = rank of the latent, p, d, e =
/// features of a head: plain, rotary, of values:
///   forward x [T, h] -> [T, h], under sequence parallel [T / t, h]
///   q_a.weight [query rank, h], q_a_norm.weight, q_b.weight [n (p + d), query rank]; without
///   compression of queries q.weight [n (p + d), h]; kv_a.weight [r + d, h], kv_a_norm.weight [r],
///   kv_b.weight [n (p + e), r], proj.weight [h, n e]
/// Every rank makes the latents of its tokens, and a rank's heads read all latents. In generation
/// a token keeps [latent, rotary key] alone, which all heads read as keys, and the latents as
/// values: kv_b moves to the queries and to the outputs (the absorbed form).
/// Collectives: those of ColumnParallelLinear and RowParallelLinear, and for the rotary key an
/// all-reduce of its gradient (sequence parallel: an all-gather, and a reduce-scatter of it); with
/// a cut layout those of context_attention, to latents if these are smaller than the heads' keys
/// and values.
/// Throws ConfigError if t does not divide n. Source: DeepSeek-V2 (arXiv:2405.04434) sec. 2.1.
#pragma once

#include <memory>
#include <optional>

#include "pentatron/layers/attention_options.h"
#include "pentatron/layers/latent_keys.h"
#include "pentatron/layers/norm.h"
#include "pentatron/layers/rotary.h"
#include "pentatron/parallel/context/context_parallel.h"
#include "pentatron/parallel/tensor/linear.h"
#include "pentatron/parallel/tensor/token_adapter.h"

namespace pentatron::layers {

class LatentAttention {
 public:
  /// `options.latent` has a value; options.qkv_bias: of q_a and kv_a. `rotary` is shared by the
  /// layers of a model, and filled before the first forward.
  LatentAttention(const nn::Scope& scope, const AttentionOptions& options,
                  parallel::TensorParallel tp, std::shared_ptr<const RotaryTable> rotary,
                  parallel::ContextWay context = {});
  at::Tensor forward(const at::Tensor& x, const nn::ForwardContext& ctx) const;
  static nn::Cost cost(const AttentionOptions& options, const nn::LayerShape& shape);

 private:
  /// A product that every rank computes for its own tokens.
  struct TokenLinear {
    TokenLinear(const nn::Scope& scope, int64_t in, int64_t out, const AttentionOptions& options,
                const parallel::TensorParallel& tp);
    at::Tensor forward(const at::Tensor& x, const nn::ForwardContext& ctx) const;
    nn::Param *weight, *bias = nullptr;
    parallel::TokenAdapters adapters;
  };
  struct Latents {
    at::Tensor latent; ///< [T / t, r] of outer tokens, after the norm
    at::Tensor key;    ///< [T, d], rotated
  };
  /// [T, n (p + d)], not rotated.
  /// What queries are made of: x, or its projection down.
  at::Tensor query_source(const at::Tensor& x, const nn::ForwardContext& ctx) const;
  at::Tensor queries(const at::Tensor& source, const nn::ForwardContext& ctx) const;
  Latents latents(const at::Tensor& x, const nn::ForwardContext& ctx) const;
  AttentionOperands expand(const at::Tensor& q, const Latents& latents,
                           const nn::ForwardContext& ctx) const;
  /// Of new tokens to the kept ones [T, n e].
  at::Tensor attend_absorbed(const at::Tensor& q, const nn::KvCache::Layer& kept,
                             const nn::ForwardContext& ctx) const;
  /// Over context-parallel ranks, to latents. [T, n e]
  /// Queries with rotary positions, [T, n, p + d]; overwrites its input.
  at::Tensor turned(const at::Tensor& q_flat, const nn::ForwardContext& ctx) const;
  at::Tensor attend_travelling(const at::Tensor& q, const Latents& own,
                               const nn::ForwardContext& ctx) const;
  /// The rotary features of heads [T, n, p + d].
  at::Tensor rotary_part(const at::Tensor& heads) const {
    return heads.narrow(2, sizes_.plain_size, sizes_.rotary_size);
  }
  void turn(const at::Tensor& out, const at::Tensor& x, const at::Tensor& positions,
            bool back) const;

  LatentSizes sizes_;
  int64_t local_heads_;
  parallel::TensorParallel tp_;
  std::shared_ptr<const RotaryTable> rotary_;
  parallel::ContextWay context_;
  std::optional<TokenLinear> q_a_;
  std::optional<Norm> q_a_norm_;
  parallel::ColumnParallelLinear q_; ///< q_b, or q
  TokenLinear kv_a_;
  Norm kv_a_norm_;
  parallel::ColumnParallelLinear kv_b_;
  parallel::RowParallelLinear proj_;
  CoreAttentionOptions core_;
  LatentKeys keys_;
};

} // namespace pentatron::layers
