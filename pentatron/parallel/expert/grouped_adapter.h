/// Adapters of low rank (LoRA) beside the frozen weights of experts, one for each expert; see
/// nn/adapter.h.
///
///   y[r, P] += s (x[r] A[e]^T) B_P[e]^T for the rows r of expert e
///
/// Parameters: lora_A [E, sum of ranks, in], lora_B.<part> [E, rows of the part, rank]. Over etp, A
/// is Partial beside a weight split by rows, whose B lies as it does; beside a weight split by
/// columns A does, and B is Partial. No collectives.
#pragma once

#include <memory>
#include <vector>

#include "pentatron/nn/module.h"
#include "pentatron/nn/ops/rows.h"

namespace pentatron::parallel {

class GroupedAdapter {
 public:
  /// Null if the scope's plan has no entry for the weight. Marks the weight as one that takes
  /// adapters.
  static std::shared_ptr<const GroupedAdapter> make(const nn::Scope& scope, nn::Param& weight);

  /// Adds to y, which grouped_linear() has made of x; returns it with a history of its own.
  at::Tensor forward(const at::Tensor& x, const std::vector<nn::RowRange>& ranges,
                     const at::Tensor& y, const nn::ForwardContext& ctx) const;

 private:
  struct Part {
    int64_t first_row = 0, first = 0, rank = 0; ///< of the rank's y, of A
    double scale = 1;
    nn::Param* b = nullptr;
  };
  GroupedAdapter(const nn::Scope& scope, const nn::Param& weight,
                 const std::vector<nn::AdaptedPart>& parts);

  nn::Param* a_ = nullptr;
  std::vector<Part> parts_;
};

} // namespace pentatron::parallel
