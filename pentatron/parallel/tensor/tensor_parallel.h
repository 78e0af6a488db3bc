/// The tensor-parallel axis as layers see it, and products that overlap with its collectives.
///
/// Source: Shoeybi et al. 2019 (arXiv:1909.08053) sec. 3; Korthikanti et al. 2022
/// (arXiv:2205.05198) sec. 4.2 for sequence parallel; Wang et al. 2023 (ASPLOS, "Overlap
/// communication with dependent computation via decomposition") for products in chunks.
#pragma once

#include <cstdint>
#include <functional>

#include <ATen/core/Tensor.h>

#include "pentatron/comm/group.h"

namespace pentatron::parallel {

struct TensorParallel {
  comm::Group group;
  /// Between split layers a rank holds its equal part of the tokens, in rank order, and not all of
  /// them: [T / t, hidden].
  bool sequence = false;
  /// Products are split into chunks of tokens, so that gathering the next chunk or summing the
  /// previous one overlaps with the product of the current one.
  bool overlap = false;

  TensorParallel() = default;
  /*implicit*/ TensorParallel(comm::Group tp) : group(std::move(tp)) {}
  TensorParallel(comm::Group tp, bool sequence_parallel, bool overlap_products)
      : group(std::move(tp)), sequence(sequence_parallel && group.size() > 1),
        overlap(overlap_products && group.size() > 1) {}

  int rank() const { return group.rank(); }
  int size() const { return group.size(); }
};

/// Works on rows [begin, begin + rows.size(0)) of the full tokens.
using RowsFn = std::function<void(int64_t begin, const at::Tensor& rows)>;

/// Calls `use` with all tokens of x: x itself, or under sequence parallel what is gathered from
/// every rank's part, in chunks if tp.overlap. Collectives: all-gathers under sequence parallel.
void gather_rows(const at::Tensor& x, const TensorParallel& tp, const RowsFn& use);

/// Fills `make`'s addends for all tokens and returns their sum over the ranks: of all tokens [T,
/// features], or under sequence parallel of this rank's part [T / t, features].
///   make(begin, rows): writes this rank's addends into `rows`
/// Collectives: all-reduces, or reduce-scatters under sequence parallel.
at::Tensor reduce_rows(int64_t tokens, int64_t features, const at::TensorOptions& options,
                       const TensorParallel& tp, const RowsFn& make);

} // namespace pentatron::parallel
