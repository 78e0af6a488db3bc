/// What attention exchanges between context-parallel ranks. Below autograd: these functions have no
/// gradient of their own, the operators that call them do.
///
/// Shapes: rows are tokens, [rows, heads, features]; a rank's rows are those of its chunks, one
/// behind the other. Ranks may have different numbers of rows, which all ranks know.
/// Source: Liu et al. 2023 (arXiv:2310.01889) for the ring, Jacobs et al. 2023 (arXiv:2309.14509)
/// for heads against tokens.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "pentatron/comm/collectives.h"
#include "pentatron/comm/group.h"
#include "pentatron/nn/context.h"

namespace pentatron::parallel {

/// The chunks that each rank of a group has.
struct TokenSplit {
  std::vector<std::vector<nn::SampleChunk>> chunks;
  std::vector<int64_t> rows; ///< by rank

  int64_t most_rows() const;
};
/// Of samples cut into zigzag over `ranks` ranks.
TokenSplit zigzag_split(const nn::SequenceLayout& whole, int ranks);
/// Of the `ranks` neighbours from rank `first` on, of a zigzag over `all` ranks.
TokenSplit zigzag_split(const nn::SequenceLayout& whole, int first, int ranks, int all);

/// The rows of all chunks in order of `target`, whose chunks are made of whole chunks of the ranks.
/// Collective: an all-gather.
at::Tensor gather_tokens(const at::Tensor& own, const TokenSplit& split,
                         const std::vector<nn::SampleChunk>& target, const comm::Group& group);
/// The adjoint: sums what every rank has for all rows, and returns the sums of its own rows.
/// Collective: a reduce-scatter.
at::Tensor sum_to_owners(const at::Tensor& all, const TokenSplit& split,
                         const std::vector<nn::SampleChunk>& target, const comm::Group& group);

/// This rank's part of the heads of all rows, in order of `target`, from all heads of its own rows.
/// Collective: an all-to-all.
at::Tensor heads_for_tokens(const at::Tensor& own, const TokenSplit& split,
                            const std::vector<nn::SampleChunk>& target, const comm::Group& group);
/// The inverse.
at::Tensor tokens_for_heads(const at::Tensor& heads, const TokenSplit& split,
                            const std::vector<nn::SampleChunk>& target, const comm::Group& group);

/// A tensor on its way to another rank, and the one that comes from a rank: in a ring to the next
/// one, from the one before. What has no rows is not sent.
class Hop {
 public:
  Hop() = default;
  /// Starts both, or with `late` lets wait() start them; `x` is contiguous and stays as it is until
  /// wait().
  Hop(const at::Tensor& x, int64_t rows_to_come, const comm::Group& ring, bool late = false);
  Hop(const at::Tensor& x, int to, int64_t rows_to_come, int from, const comm::Group& group,
      bool late = false);
  /// What has come.
  at::Tensor wait();

 private:
  at::Tensor leaves_, comes_;
  std::optional<comm::TransferBatch> late_;
  comm::Work work_;
};
/// Whose rows a rank has after so many hops.
int rank_before(const comm::Group& ring, int hops);

} // namespace pentatron::parallel
