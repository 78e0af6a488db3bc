/// Softmax cross-entropy over a block of logits whose vocabulary may be split over ranks.
///
/// One rank: `cross_entropy` does everything. Several ranks, each with its columns of the
/// vocabulary:
///   1. cross_entropy_stats      local maximum, sum of exponentials, target logit (and sum of
///   logits) of every row
///   2. the caller: global maximum by all-reduce MAX; cross_entropy_rescale; all-reduce SUM of
///   sum_exp, target_logit, logit_sum
///   3. cross_entropy_loss       log-sum-exp and loss of every row
///   4. cross_entropy_gradient
///
/// Shapes: rows r, columns v. logits [r, v] with `row_stride` elements between rows; per-row values
/// [r], contiguous.
///   x_j logit, V the global vocabulary without padding, t the target, eps label smoothing, z the
///   z-loss coefficient: loss     = lse - (1 - eps) x_t - eps / V sum_j x_j + z lse^2 gradient =
///   row_scale ((1 + 2 z lse) exp(x_j - lse) - (1 - eps) [j = t] - eps / V)
/// A target < 0 is ignored: loss and gradient of its row are zero whatever the logits hold. A
/// target that no rank holds is a mistake of the caller (check with embedding's first_bad_id): it
/// counts as a logit of zero. Columns [v, v_padded) are padding: never read, their gradient is
/// written zero. A NaN or +inf in a row makes that row's loss and gradient NaN, as does a row of
/// -inf only; a single -inf has probability zero. Per-row values are of the accumulate type,
/// acc_dtype(dtype). Rows are independent of each other and of the number of threads. Source:
/// Megatron-LM's vocab-parallel cross-entropy (arXiv:1909.08053 sec. 3); online softmax (Milakov &
/// Gimelshein 2018, arXiv:1805.02867); z-loss (PaLM, arXiv:2204.02311 sec. 5).
#pragma once

#include <cstdint>
#include <span>

#include "pentatron/kernels/contract.h"

namespace pentatron::kernels {

struct CrossEntropyStatsArgs {
  DType dtype = DType::kFloat32; ///< of the logits
  int64_t rows = 0;
  int64_t columns = 0; ///< real columns of this rank, may be 0
  int64_t row_stride = 0;
  const void* logits = nullptr;
  const int64_t* target = nullptr; ///< global token numbers; < 0: ignored
  int64_t vocab_offset = 0;        ///< global number of column 0
  void* max = nullptr;             ///< out; -inf if columns == 0
  void* sum_exp = nullptr;         ///< out: sum_j exp(x_j - max); 0 if columns == 0
  void* target_logit = nullptr;    ///< out: 0 if the target is elsewhere
  void* logit_sum = nullptr;       ///< out: sum_j x_j; null unless label smoothing is used
};

/// Brings sums of exponentials that refer to `local_max` to `global_max`, in place.
struct CrossEntropyRescaleArgs {
  DType dtype = DType::kFloat32; ///< accumulate type: kFloat32 or kFloat64
  int64_t rows = 0;
  const void* local_max = nullptr;
  const void* global_max = nullptr;
  void* sum_exp = nullptr;
};

struct CrossEntropyLossArgs {
  DType dtype = DType::kFloat32; ///< accumulate type
  int64_t rows = 0;
  const int64_t* target = nullptr;
  const void* max = nullptr; ///< these four combined over all ranks
  const void* sum_exp = nullptr;
  const void* target_logit = nullptr;
  const void* logit_sum = nullptr; ///< null unless label_smoothing > 0
  int64_t global_vocab = 0;        ///< V; used by label smoothing only
  double label_smoothing = 0;
  double z_loss = 0;
  void* lse = nullptr;  ///< out
  void* loss = nullptr; ///< out; not multiplied by any row scale
};

struct CrossEntropyGradientArgs {
  DType dtype = DType::kFloat32;     ///< of the logits
  DType out_dtype = DType::kFloat32; ///< of the gradient; kFloat64 exactly if dtype is
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t padded_columns = 0; ///< columns written; >= columns
  int64_t row_stride = 0;
  int64_t out_row_stride = 0;
  const void* logits = nullptr;
  const int64_t* target = nullptr;
  int64_t vocab_offset = 0;
  const void* max = nullptr;     ///< combined over all ranks, accumulate type
  const void* sum_exp = nullptr; ///< combined over all ranks; more exact than a rounded log-sum-exp
  const void* row_scale = nullptr; ///< accumulate type: loss mask / denominator (x loss scale)
  int64_t global_vocab = 0;
  double label_smoothing = 0;
  double z_loss = 0;
  /// Out. May be `logits` if dtypes and strides are equal; on a CPU also if the gradient is
  /// narrower and its rows begin where those of the logits do.
  void* gradient = nullptr;
};

/// Loss, log-sum-exp and gradient on the rank that holds the whole vocabulary.
struct CrossEntropyArgs {
  DType dtype = DType::kFloat32;
  DType out_dtype = DType::kFloat32;
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t padded_columns = 0;
  int64_t row_stride = 0;
  int64_t out_row_stride = 0;
  const void* logits = nullptr;
  const int64_t* target = nullptr;
  const void* row_scale = nullptr; ///< may be null if gradient is
  double label_smoothing = 0;
  double z_loss = 0;
  void* lse = nullptr;  ///< out
  void* loss = nullptr; ///< out
  /// Out. May be `logits` as in CrossEntropyGradientArgs, or null for the loss alone.
  void* gradient = nullptr;
};

void cross_entropy_stats(const CrossEntropyStatsArgs& args, const Context& context = {});
void cross_entropy_rescale(const CrossEntropyRescaleArgs& args, const Context& context = {});
void cross_entropy_loss(const CrossEntropyLossArgs& args, const Context& context = {});
void cross_entropy_gradient(const CrossEntropyGradientArgs& args, const Context& context = {});
void cross_entropy(const CrossEntropyArgs& args, const Context& context = {});

/// The ordered lists, for tests and benchmarks.
std::span<const Entry<CrossEntropyStatsArgs>> cross_entropy_stats_entries();
std::span<const Entry<CrossEntropyRescaleArgs>> cross_entropy_rescale_entries();
std::span<const Entry<CrossEntropyLossArgs>> cross_entropy_loss_entries();
std::span<const Entry<CrossEntropyGradientArgs>> cross_entropy_gradient_entries();
std::span<const Entry<CrossEntropyArgs>> cross_entropy_entries();

} // namespace pentatron::kernels
