/// Low-rank adapters (LoRA) for the frozen weights of experts, one for each expert; see
/// nn/adapter.h.
///
///   y[r, P] += s (x[r] A[e]^T) B_P[e]^T for the rows r of expert e
///
/// Parameters: lora_A [E, sum of ranks, in], lora_B.<part> [E, rows of the part, rank]. Over etp,
/// if the weight is split by rows, A is Partial and B is split like the weight; if the weight is
/// split by columns, A is split like the weight and B is Partial. No collectives.
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

  /// Adds the adapter's output to y, the result of grouped_linear() for x. Returns y with its own
  /// autograd history.
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
