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
#include <string>
#include <vector>

#include "pentatron/nn/module.h"
#include "pentatron/nn/ops/rows.h"

namespace pentatron::parallel {

class GroupedAdapter {
 public:
  /// Null if the scope's plan has no entry for the weight. Marks the weight as one that takes
  /// adapters.
  static std::shared_ptr<const GroupedAdapter> make(const nn::Scope& scope, nn::Param& weight);

  /// One for each of the scope's variants, in their order; null for one without an entry. Empty if
  /// none has one.
  static std::vector<std::shared_ptr<const GroupedAdapter>> make_variants(const nn::Scope& scope,
                                                                          const nn::Param& weight);
  /// The same as forward() for rows of variants (ForwardContext::variant_rows). `variants_r`: [R]
  /// int64 on the CPU, the variant of each row, 0 for none. Without a gradient; writes into y.
  static void add_variants(const std::vector<std::shared_ptr<const GroupedAdapter>>& variants,
                           const at::Tensor& y, const at::Tensor& x,
                           const std::vector<nn::RowRange>& ranges, const at::Tensor& variants_r,
                           const nn::ForwardContext& ctx);

  /// Adds to y, which grouped_linear() has made of x; returns it with a history of its own.
  at::Tensor forward(const at::Tensor& x, const std::vector<nn::RowRange>& ranges,
                     const at::Tensor& y, const nn::ForwardContext& ctx) const;

 private:
  struct Part {
    int64_t first_row = 0, first = 0, rank = 0; ///< of the rank's y, of A
    double scale = 1;
    nn::Param* b = nullptr;
  };
  /// `name_end`: what the names of its parameters end with.
  GroupedAdapter(const nn::Scope& scope, const nn::Param& weight, const nn::AdapterPlan& plan,
                 const std::string& name_end = {});

  nn::Param* a_ = nullptr;
  std::vector<Part> parts_;
};

} // namespace pentatron::parallel
