/// The way of tokens to their experts and back, over the ranks of etp x ep.
///
/// kAllToAll: each token's row goes to the ranks that hold the parts of its experts, with etp = 1
/// one for each of its k experts. An expert's rows are one range for each source rank.
/// kAllGather: every token goes to every rank, which takes the rows of its experts, and sums over
/// ranks come back. An expert's rows are one range.
///
/// Rows of an expert lie in order of source rank and token. Results are added up in the order of
/// choices and etp ranks (alltoall), or of choices on each rank and then of ranks (allgather).
///
/// Choices stay on their device. The host waits for the counts of rows alone, in one copy that sets
/// off before the device orders the rows.
///
/// Collectives: all-gathers of counts or choices, and an exchange each way in forward and backward.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "pentatron/comm/group.h"
#include "pentatron/config/field.h"
#include "pentatron/nn/ops/rows.h"
#include "pentatron/parallel/expert/exchange.h"
#include "pentatron/parallel/tensor/tensor_parallel.h"

namespace pentatron::parallel {

struct Order;

/// Spelled as Megatron's --moe-token-dispatcher-type.
enum class DispatchKind : uint8_t { kAllToAll, kAllGather };
constexpr auto enum_names(DispatchKind) {
  return std::array{config::name(DispatchKind::kAllToAll, "alltoall"),
                    config::name(DispatchKind::kAllGather, "allgather")};
}

/// How experts lie on ranks. `group`: etp ranks of an expert side by side, then those of the next
/// experts; experts are dealt out in equal blocks.
struct ExpertParallel {
  comm::Group group;
  int etp = 1;
  comm::Group samples; ///< the ranks that route other tokens of the same samples
  DispatchKind kind = DispatchKind::kAllToAll;
  bool overlap_shared = false;                ///< shared experts work while tokens are on their way
  std::shared_ptr<nn::Turns> turns = nullptr; ///< of two passes, where exchanges are awaited

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

  /// Tokens and their numbers on their way.
  struct Sent {
    Exchange::Started rows, values;
  };
  struct Arrived {
    at::Tensor rows;   ///< [R, f] of this rank's experts
    at::Tensor values; ///< [R]: the number that belongs to each row
  };
  /// x [T, f] and a number for each choice [T, k]. Other work may be done before arrive().
  Sent send(const at::Tensor& x, const at::Tensor& per_choice) const;
  Arrived arrive(const Sent& sent) const;
  /// [R, 1]: a value of each token [T, 1] on the way of its rows; 0 where a row has no token.
  at::Tensor carry(const at::Tensor& per_token) const;
  /// [T, f]: for each token the sum of its rows, from [R, f].
  at::Tensor take_back(const at::Tensor& rows) const;

  /// The rows of this rank's experts, numbered from 0.
  const std::vector<nn::RowRange>& ranges() const { return ranges_; }

 private:
  void plan_all_to_all(const at::Tensor& experts, int64_t num_experts, int64_t least);
  void plan_all_gather(const at::Tensor& experts, int64_t num_experts, int64_t least);
  Order repeated(const Order& order, const at::Tensor& keys, const at::Tensor& counts) const;
  bool gathers() const { return parallel_.kind == DispatchKind::kAllGather; }

  ExpertParallel parallel_;
  Exchange exchange_;
  // Of rows that this rank sends, or of the rows of its experts if it gathers tokens.
  at::Tensor source_;        ///< [rows]: the token of a row; -1: none
  at::Tensor choice_;        ///< [rows]: its place in [T, k], flattened; -1: none
  at::Tensor places_;        ///< [T, k m]: the rows of a token; -1: dropped or elsewhere
  at::Tensor values_places_; ///< [T k, m]: the rows of a choice
  std::vector<nn::RowRange> ranges_;
};

} // namespace pentatron::parallel
