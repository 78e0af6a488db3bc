/// The two ends of a language model, split over the vocabulary: the embedding, and the output layer
/// fused with the loss.
///
/// A rank holds ceil(V / t) rows rounded up to 64 of the true V; later ranks may hold fewer real
/// rows or none, and padding rows are local. Source: Shoeybi et al. 2019 (arXiv:1909.08053) sec. 3.
#pragma once

#include <optional>
#include <string_view>

#include "pentatron/nn/context.h"
#include "pentatron/nn/module.h"
#include "pentatron/parallel/tensor/head_rows.h"
#include "pentatron/parallel/tensor/tensor_parallel.h"
#include "pentatron/parallel/tensor/vocab_adapter.h"

namespace pentatron::parallel {

/// The ShardSpec of a [vocabulary, hidden] table.
nn::ShardSpec vocab_spec(int64_t vocab_size, int64_t hidden_size);

/// Which part of the vocabulary a rank holds of a table with vocab_spec.
struct VocabShare {
  int64_t offset = 0; ///< global number of row 0
  int64_t real = 0;   ///< rows that exist
  int64_t padded = 0; ///< rows of the rank's tensor
};
VocabShare vocab_share(const nn::Param& table);

/// The logits that exist at one time, a chunk of tokens. Larger chunks pass over the weight and its
/// gradient less often: on a GPU that is the largest part of the loss's traffic, on a CPU products
/// hide it. `memory`: the bytes that the GPU has, 0 if that is not known.
int64_t logits_bytes_on_cpu();
int64_t logits_bytes_on_gpu(int64_t memory);

/// Rows of the table, plus learned positions.
///
/// Shapes: ids [T] int64 -> [T, hidden], under sequence parallel [T / t, hidden]. Collectives:
/// forward all-reduce (ids of other ranks' rows give zeros); backward none. Sequence parallel:
/// forward reduce-scatter, backward all-gather.
class VocabParallelEmbedding {
 public:
  VocabParallelEmbedding(nn::Param& table, nn::Param* positions, TensorParallel tp,
                         VocabAdapters adapters = {});
  at::Tensor forward(const at::Tensor& ids, const nn::ForwardContext& ctx) const;

 private:
  nn::Param* table_;
  nn::Param* positions_;
  TensorParallel tp_;
  VocabAdapters adapters_;
};

/// The ShardSpec of one value for each row of such a table: the bias of an output layer.
nn::ShardSpec vocab_bias_spec(int64_t vocab_size);

/// x [T / t, ...] of all ranks under sequence parallel, else x itself. Without autograd.
at::Tensor gathered_tokens(const at::Tensor& x, const TensorParallel& tp);

/// Output projection and softmax cross-entropy over chunks of tokens, so that the logits of a
/// microbatch never exist at once.
///
/// The loss scale is known before the forward pass, so the gradient of a chunk is computed right
/// behind its loss: three matrix products for each chunk and nothing twice. Where at most three
/// quarters of the tokens have a target, the others take no part in the products.
class VocabHead {
 public:
  /// `bias`: added to the logits, may be null. `cap`: logits x become cap tanh(x / cap) (Gemma 2,
  /// arXiv:2408.00118); 0: no cap.
  VocabHead(nn::Param& weight, nn::Param* bias, TensorParallel tp, double cap = 0,
            VocabAdapters adapters = {});

  /// Shapes: h [T, hidden], labels [T] int64, negative: no target -> scalar: sum of the losses of
  /// tokens with a target, times ctx.loss_scale(term). The unscaled sum is added to the term's;
  /// with Wanted::scores the targets with the largest logit are counted too.
  /// Its gradient must be 1: it is a root of a backward pass. Under sequence parallel h is
  /// [T / t, hidden]. Collectives: forward three all-reduces of [chunk] statistics and, in the
  /// same pass, one of dh; sequence parallel: forward all-gather of h, and a reduce-scatter of dh
  /// instead.
  at::Tensor loss(const at::Tensor& h, const at::Tensor& labels, std::string_view term,
                  const nn::ForwardContext& ctx) const;
  /// The same for the labels of a field of the batch, whose Microbatch::labelled_rows are used.
  at::Tensor loss(const at::Tensor& h, std::string_view field, std::string_view term,
                  const nn::ForwardContext& ctx) const;

  /// Logits of tokens `rows` [R] (int64, numbers in [0, T); undefined: all) as [R, V] in the
  /// accumulate type, on every rank of the group.
  at::Tensor logits(const at::Tensor& h, const at::Tensor& rows,
                    const nn::ForwardContext& ctx) const;

  /// Deposits what Wanted::scored_rows asks for, on every rank of the group. By log_softmax of
  /// LibTorch, in chunks of whole rows: its sums in fp32 are lower than exact ones by up to 1e-5 a
  /// token, and programs whose scores are compared use it.
  void score_tokens(const at::Tensor& h, const nn::ForwardContext& ctx) const;

 private:
  at::Tensor loss_of_rows(const at::Tensor& h, const at::Tensor& labels, const at::Tensor& rows,
                          std::string_view term, const nn::ForwardContext& ctx) const;
  /// A pass of the adapter, if there is one, over gathered tokens `rows` (undefined: all).
  std::optional<VocabAdapter::Pass>
  adapter_pass(const at::Tensor& rows, const nn::ForwardContext& ctx, bool with_gradient) const;
  /// Of gathered tokens `rows` (undefined: all) with hidden states h: those of `adapting` from
  /// `begin` on.
  at::Tensor whole_logits(const at::Tensor& h, const at::Tensor& rows,
                          std::optional<VocabAdapter::Pass>& adapting, int64_t begin,
                          const nn::ForwardContext& ctx) const;

  nn::Param* weight_;
  nn::Param* bias_;
  TensorParallel tp_;
  double cap_;
  VocabAdapters adapters_;
};

} // namespace pentatron::parallel
