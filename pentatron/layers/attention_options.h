/// Options of self-attention that do not depend on how queries, keys and values are projected.
#pragma once

#include <cstdint>
#include <optional>

#include "pentatron/layers/core_attention.h"
#include "pentatron/layers/heads_norm.h"
#include "pentatron/nn/cost.h"
#include "pentatron/nn/module.h"
#include "pentatron/parallel/tensor/tensor_parallel.h"

namespace pentatron::layers {

/// Of multi-head latent attention.
struct LatentSizes {
  int64_t query_rank = 0;  ///< of the queries' latent; 0: queries are not compressed
  int64_t rank = 0;        ///< of the latent of keys and values
  int64_t plain_size = 0;  ///< features of a query or key head without position
  int64_t rotary_size = 0; ///< and of those with one; keys share them
  int64_t value_size = 0;  ///< of a value head
  double norm_eps = 1e-6;  ///< of the latents
};

struct AttentionOptions {
  int64_t hidden = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_size = 0;
  bool qkv_bias = false;
  bool proj_bias = false;
  QkNorm qk_norm = QkNorm::kNone; ///< RMSNorm of q and k
  double norm_eps = 1e-5;
  bool norm_zero_centered = false;
  AttentionMask mask = AttentionMask::kCausal; ///< causal or full
  double scale = 0;                            ///< of the scores; 0: 1 / sqrt(head_size)
  int64_t window = 0;
  double score_cap = 0; ///< see CoreAttentionOptions
  SoftmaxKind softmax = SoftmaxKind::kVanilla;
  double dropout = 0;
  uint32_t dropout_site = 0;
  double init_std = 0.02;
  double proj_init_std = 0.02;
  std::optional<LatentSizes> latent; ///< see LatentAttention; head_size is that of keys
};

/// Of a rank's heads; registers the sinks if they are learned.
CoreAttentionOptions core_attention_options(const nn::Scope& scope, const AttentionOptions& options,
                                            const parallel::TensorParallel& tp);

/// Twice the pairs of a query and a key that it sees, of causal attention the diagonal counted
/// half. With a window w, a document of length l > w has 2 w l - w^2 of them. Documents of the
/// class of lengths that w divides count as equal, which is off by less than 1 % of them.
double visible_squares(const AttentionOptions& options, const nn::LayerShape& shape);

} // namespace pentatron::layers
