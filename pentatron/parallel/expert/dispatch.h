/// The way of tokens to their experts and back.
///
/// Each token's row goes to the ranks that hold the parts of its experts: with etp = 1 one for each
/// of its k experts. A rank gets its rows by source rank and then by expert, each expert's in order
/// of tokens: one range of rows for each. Results go back the same way, and are added up in one
/// order in every layout.
///
/// Collectives: an all-gather of counts, and an all-to-all each way in forward and backward, over
/// the ranks of etp x ep.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "pentatron/comm/group.h"
#include "pentatron/nn/ops/rows.h"
#include "pentatron/parallel/tensor/tensor_parallel.h"

namespace pentatron::parallel {

/// How experts lie on ranks. `group`: etp ranks of an expert side by side, then those of the next
/// experts; experts are dealt out in equal blocks.
struct ExpertParallel {
  comm::Group group;
  int etp = 1;
  comm::Group samples; ///< the ranks that route other tokens of the same samples

  int ep() const { return group.size() / etp; }
  int64_t local_experts(int64_t experts) const { return experts / ep(); }
};

/// The tokens that this tp rank routes: x itself under sequence parallel, else its block of equal
/// rows, the last blocks short or empty. The gradient of x is gathered, so that all tp ranks have
/// it whole.
at::Tensor own_rows(const at::Tensor& x, const TensorParallel& tp);
/// The same part of something that has one value for each outer token, without a gradient.
at::Tensor own_part(const at::Tensor& per_token, const TensorParallel& tp);
/// The adjoint, for results: all `tokens` rows from every rank's block. Collective.
at::Tensor join_rows(const at::Tensor& own, int64_t tokens, const TensorParallel& tp);

class Dispatch {
 public:
  /// Collective. `experts` [T, k] int64 on this rank's tokens; -1: a choice that was dropped.
  /// `least`: every expert gets at least so many rows of each rank, the last ones zero.
  Dispatch(const at::Tensor& experts, int64_t num_experts, ExpertParallel parallel,
           int64_t least = 0);

  /// Rows [R, f] of this rank's experts, from x [T, f].
  at::Tensor send(const at::Tensor& x) const;
  /// [R] from [T, k]: the number that belongs to each row.
  at::Tensor send_values(const at::Tensor& per_choice) const;
  /// [T, f]: for each token the sum of its rows, from [R, f].
  at::Tensor take_back(const at::Tensor& rows) const;

  /// The rows of this rank's experts, numbered from 0.
  const std::vector<nn::RowRange>& ranges() const { return ranges_; }

 private:
  ExpertParallel parallel_;
  at::Tensor source_;                   ///< [sent rows]: the token of a row; -1: none
  at::Tensor choice_;                   ///< [sent rows]: its place in [T, k], flattened; -1: none
  at::Tensor places_;                   ///< [T, k etp]: the sent rows of a token; -1: dropped
  at::Tensor values_places_;            ///< [T k, etp]: the sent rows of a choice
  std::vector<int64_t> send_, receive_; ///< rows by rank of the group
  std::vector<nn::RowRange> ranges_;
};

} // namespace pentatron::parallel
